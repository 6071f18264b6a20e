#!/usr/bin/env bash
# Runs all commands, even after one has failed, and ends with one line: "passed", or the commands that failed.
#
#   tools/each.sh 'make test' 'python -m pytest' 'bazel test //...'
set -uo pipefail

name=$1
shift
failed=()
for command; do
  echo "== $command"
  bash -c "$command" || failed+=("$command")
done

if ((${#failed[@]})); then
  printf '%s: FAILED:' "$name" >&2
  printf ' `%s`' "${failed[@]}" >&2
  echo >&2
  exit 1
fi
echo "$name: passed"

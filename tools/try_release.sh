#!/usr/bin/env bash
# Tries each installation that `tools/setup.sh released` made, and writes the SBOM of one.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/tried && mkdir build/tried
build/released/all/bin/python -I tools/try_installation.py all build/tried
for each in build/released/3.*; do
  echo -n "${each##*/}: "
  "$each/bin/python" -I tools/try_installation.py bare build/tried
done
.venv/bin/python tools/sbom.py "$each/bin/python" build/sbom.cdx.json

#!/usr/bin/env bash
# Sets up what the Makefile's targets need. Safe to repeat; quiet unless it has something to do or to report.
#
#   tools/setup.sh python   .venv with this package (editable), its C++ core, and what demo, recipes, tests and docs need;
#                           with the lowest supported JAX
#   tools/setup.sh newest   .venv-newest: the newest supported Python that is found, with the newest supported JAX; tests
#                           there use the checkout and its core
#   tools/setup.sh installed   .venv-bare and .venv-all: a wheel of this package, installed without extras and with all
#   tools/setup.sh cuda     NVIDIA's compiler and libraries from PyPI in .venv, for the CUDA core, and JAX's plugin, which
#                           compiles for GPUs; no driver, no GPU
#   tools/setup.sh tpu      libtpu from PyPI in build/tpu_plugin, which compiles for TPUs; no TPU
#   tools/setup.sh bazel    Bazel and googletest, for the C++ tests
#   tools/setup.sh testbed  where root calls: ip, tc and nft, for the tests that make hosts of their own
#   tools/setup.sh fuzz     clang with libFuzzer
#
# Package names are those of Debian 12, where this was tried; Ubuntu 24.04 inherits them (component `universe`).
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  case "${1:-}" in
    python) setup_python ;;
    newest) setup_newest ;;
    installed) setup_installed ;;
    cuda) setup_cuda ;;
    tpu) setup_tpu ;;
    bazel) debian_packages bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto libgtest-dev ;;
    testbed) ((EUID)) || debian_packages iproute2 nftables procps ;;
    fuzz) debian_packages clang libclang-rt-dev ;;
    *) fail "usage: tools/setup.sh python|newest|installed|cuda|tpu|bazel|testbed|fuzz" ;;
  esac
}

setup_python() {
  command -v c++ >/dev/null || debian_packages g++
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    local python
    python=$(find_python) || { debian_packages python3 python3-venv; python=$(find_python); } ||
      fail "no Python 3.11 or newer with venv was found. Cure: install one, then \`make setup PYTHON=/path/to/python3\`."
    echo "Creating .venv with $python"
    quietly "$python" -m venv --clear .venv
  fi
  echo "Installing Python packages into .venv and building the C++ core (minutes, the first time)"
  # The lowest JAX: newer ones take a core that was built against its headers. Without build isolation CMake's paths stay
  # valid.
  local jax wanted=${JAXCOMM_CUDA:-AUTO}
  jax=$(requirements | sed -n 's/^jax>=\([0-9.]*\),.*/\1/p')
  install 'scikit-build-core>=0.11' 'cmake>=3.25' 'ninja>=1.11' "jax==$jax" "jaxlib==$jax"
  # Before `tools/setup.sh cuda` has run, JAXCOMM_CUDA=ON cannot be.
  JAXCOMM_CUDA=${wanted/ON/AUTO} install --no-build-isolation --editable '.[demo,recipes,dev,docs]' \
    "jax==$jax" "jaxlib==$jax"
}

setup_newest() {
  local python wanted
  python=$(find_newest_python)
  mapfile -t wanted < <(requirements demo recipes dev docs)
  echo "Installing Python packages into .venv-newest with $python"
  quietly "$python" -m venv --clear .venv-newest
  VENV=.venv-newest install "${wanted[@]}"
  # The checkout, also for the programs that tests start elsewhere.
  echo "$PWD" >"$(.venv-newest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
}

setup_installed() {
  local name
  echo "Building a wheel, for installations without extras and with all (minutes)"
  rm -rf build/installed
  JAXCOMM_CUDA=OFF PATH="$PWD/.venv/bin:$PATH" quietly .venv/bin/python -m pip wheel . --no-build-isolation --no-deps \
    --wheel-dir build/installed
  for name in bare all; do
    quietly .venv/bin/python -m venv --clear ".venv-$name"
  done
  VENV=.venv-bare install build/installed/*.whl
  VENV=.venv-all install "$(echo build/installed/*.whl)[all]"
}

setup_cuda() {
  # The packages of the extra cuda13-build, which pip could name only by building this package for it, and JAX's plugin,
  # whose compiler needs no GPU either.
  local wheels jax
  mapfile -t wheels < <(.venv/bin/python tools/requirements.py --only cuda13-build)
  jax=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("jax"))')
  echo "Installing NVIDIA's CUDA compiler into .venv and JAX's CUDA plugin into build/cuda_plugin (400 MB)"
  install "${wheels[@]}"
  rm -rf build/cuda_plugin
  install --no-deps --target build/cuda_plugin "jax-cuda13-plugin==$jax" "jax-cuda13-pjrt==$jax"
}

setup_tpu() {
  local library
  library=$(.venv/bin/python -c 'from importlib.metadata import requires
print(next(each.split(";")[0] for each in requires("jax") if each.startswith("libtpu")))')
  echo "Installing XLA's compiler for TPUs into build/tpu_plugin (213 MB)"
  rm -rf build/tpu_plugin
  install --no-deps --target build/tpu_plugin "$library"
}

# The packages that pyproject.toml names, and those of extras.
requirements() {
  .venv/bin/python tools/requirements.py "$@"
}

# Installs Python packages into VENV, or .venv, by uv, which takes a tenth of pip's time, or by pip, where uv cannot: it
# knows nothing of pip's configuration.
install() {
  local python=${VENV:-.venv}/bin/python
  .venv/bin/python -m uv --version >/dev/null 2>&1 || quietly .venv/bin/python -m pip install uv
  .venv/bin/python -m uv pip install --quiet --compile-bytecode --python "$python" "$@" >/dev/null 2>&1 </dev/null ||
    quietly "$python" -m pip install "$@"
}

# The newest supported Python, of pyenv's and those on PATH, that can make a virtual environment; .venv's in the end.
find_newest_python() {
  local minor python
  for minor in 13 12 11; do
    for python in ${PYTHON:+"$PYTHON"} "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3; do
      if "$python" -c "import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
        echo "$python"
        return
      fi
    done
  done
  echo .venv/bin/python
}

# The first Python that is new enough and can make a virtual environment.
find_python() {
  local python
  for python in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  return 1
}

# Installs those of the packages that are missing or, where it may not, says which and how.
debian_packages() {
  local missing=() package as_root=()
  for package; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo -n)
  if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    fail "missing Debian packages: ${missing[*]}. Cure: sudo apt-get install ${missing[*]}"
  fi
  echo "Installing Debian packages: ${missing[*]}"
  quietly "${as_root[@]}" apt-get -q update
  quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install "${missing[@]}"
}

# Runs a command and shows what it printed only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    rm "$log"
    fail "this failed: $*"
  fi
  rm "$log"
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

main "$@"

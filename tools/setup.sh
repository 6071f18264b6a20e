#!/usr/bin/env bash
# Sets up what the Makefile's targets need. Safe to repeat; quiet unless it has something to do or to report.
#
#   tools/setup.sh python   .venv with this package (editable), its C++ core, and what demo, recipes, tests and docs need;
#                           with the lowest supported JAX
#   tools/setup.sh newest   .venv-newest: the newest supported Python that is found, with the newest supported JAX; tests
#                           there use the checkout and its core
#   tools/setup.sh installed   .venv-bare and .venv-all: a wheel of this package, installed without extras and with all
#   tools/setup.sh notebooks   a wheel of this package in build/notebooks
#   tools/setup.sh release  the packages of PyPI that make a release, among them zig, a compiler for any processor and glibc
#   tools/setup.sh released build/released: virtual environments with what `tools/release.sh` made
#   tools/setup.sh aarch64  build/aarch64: Python and JAX for aarch64, and QEMU, which runs them here
#   tools/setup.sh cuda     NVIDIA's compiler and libraries from PyPI in .venv, for the CUDA core, and JAX's plugin, which
#                           compiles for GPUs; no driver, no GPU
#   tools/setup.sh tpu      libtpu from PyPI in build/tpu_plugin, which compiles for TPUs; no TPU
#   tools/setup.sh bazel    Bazel and googletest, for the C++ tests
#   tools/setup.sh testbed  if root calls it: ip, tc and nft, for the tests that create hosts of their own
#   tools/setup.sh fuzz     clang with libFuzzer
#   tools/setup.sh tidy     clang-tidy from PyPI in .venv, whose package brings clang's own headers
#
# Package names are those of Debian 12, where this was tried; Ubuntu 24.04 inherits them (component `universe`).
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
  case "${1:-}" in
    python) setup_python ;;
    newest) setup_newest ;;
    installed) setup_installed ;;
    notebooks) build_wheel build/notebooks ;;
    release) setup_release ;;
    released) setup_released ;;
    aarch64) setup_aarch64 ;;
    cuda) setup_cuda ;;
    tpu) setup_tpu ;;
    bazel) debian_packages bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto libgtest-dev libfabric1 ;;
    testbed) ((EUID)) || debian_packages iproute2 nftables procps ;;
    fuzz) debian_packages clang libclang-rt-dev ;;
    tidy) install clang-tidy==19.1.0.1 ;;
    *) fail "usage: tools/setup.sh python|newest|installed|notebooks|release|released|aarch64|cuda|tpu|bazel|testbed|fuzz|tidy" ;;
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
  # The lowest JAX, because newer ones accept a core that was built against its headers. Without build isolation CMake's
  # paths stay valid.
  local jax wanted=${JAXCOMM_CUDA:-AUTO}
  jax=$(requirements | sed -n 's/^jax>=\([0-9.]*\),.*/\1/p')
  install 'hatch-fancy-pypi-readme>=25.1' 'scikit-build-core>=0.11' 'cmake>=3.25' 'ninja>=1.11' "jax==$jax" "jaxlib==$jax"
  # JAXCOMM_CUDA=ON would fail before `tools/setup.sh cuda` has run.
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
  # The checkout, also for programs that tests start elsewhere, and the file that an installation runs when Python starts.
  local packages
  packages=$(.venv-newest/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$PWD" >"$packages/checkout.pth"
  cp jaxcomm/backend/jaxcomm.pth "$packages/"
}

setup_installed() {
  local name
  build_wheel build/installed
  for name in bare all; do
    quietly .venv/bin/python -m venv --clear ".venv-$name"
  done
  VENV=.venv-bare install build/installed/*.whl
  VENV=.venv-all install "$(echo build/installed/*.whl)[all]"
}

setup_release() {
  local wanted
  debian_packages gcc-aarch64-linux-gnu
  mapfile -t wanted < <(requirements --only release)
  echo "Installing zig and the tools of a release into .venv (100 MB)"
  install "${wanted[@]}"
}

setup_released() {
  local python minor distribution
  echo "Installing the wheel and the source distribution for two versions of Python (minutes)"
  rm -rf build/released
  for python in .venv/bin/python "$(find_newest_python)"; do
    minor=$("$python" -c 'import sys; print("3.%d" % sys.version_info[1])')
    for distribution in dist/*_"$(uname -m)".whl dist/*.tar.gz; do
      install_released "$minor-${distribution##*.}" "$python" "$distribution"
    done
  done
  install_released all .venv/bin/python "$(echo dist/*_"$(uname -m)".whl)[all]"
}

# Without pip, so that only what was asked for is there.
install_released() {
  quietly .venv/bin/python -m uv venv --clear --python "$2" "build/released/$1"
  quietly .venv/bin/python -m uv pip install --python "build/released/$1/bin/python" "$3"
}

setup_aarch64() {
  local jax
  debian_packages debian-archive-keyring mmdebstrap qemu-user uidmap
  jax=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("jax"))')
  echo "Setting up Python and JAX for aarch64 in build/aarch64 (200 MB)"
  rm -rf build/aarch64
  mkdir -p build/aarch64/root
  # Only unpacked: nothing for aarch64 runs before QEMU is asked to. By tar, because a folder that mmdebstrap makes without
  # root cannot be removed without root. Devices need root.
  quietly mmdebstrap --architectures=arm64 --variant=extract --include=libstdc++6,python3 bookworm \
    build/aarch64/root.tar
  tar --extract --file build/aarch64/root.tar --directory build/aarch64/root --exclude './dev/*'
  quietly .venv/bin/python -m uv pip install --only-binary :all: --python-platform aarch64-manylinux_2_28 \
    --python-version 3.11 --target build/aarch64/packages "jax==$jax" dist/*_aarch64.whl
}

setup_cuda() {
  # The packages of the extra cuda13-build, for which pip would have to build this package, and JAX's plugin, whose compiler
  # also needs no GPU.
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

# Builds a wheel of this package, for CPUs, as the only file of a folder.
build_wheel() {
  echo "Building a wheel in $1 (minutes)"
  rm -rf "$1"
  JAXCOMM_CUDA=OFF PATH="$PWD/.venv/bin:$PATH" quietly .venv/bin/python -m pip wheel . --no-build-isolation --no-deps \
    --wheel-dir "$1"
}

# Prints the packages that pyproject.toml names, and those of the given extras.
requirements() {
  .venv/bin/python tools/requirements.py "$@"
}

# Installs Python packages into VENV (default: .venv) with uv, which takes a tenth of pip's time, or with pip if uv fails:
# uv ignores pip's configuration.
install() {
  local python=${VENV:-.venv}/bin/python
  .venv/bin/python -m uv --version >/dev/null 2>&1 || quietly .venv/bin/python -m pip install uv
  .venv/bin/python -m uv pip install --quiet --compile-bytecode --python "$python" "$@" >/dev/null 2>&1 </dev/null ||
    quietly "$python" -m pip install "$@"
}

# The newest supported Python of pyenv or on PATH that can create a virtual environment; .venv's if there is none.
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

# The first Python that is new enough and can create a virtual environment.
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

# Installs the missing packages. Without permission, fails with their names and the command that installs them.
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

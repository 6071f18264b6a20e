#!/usr/bin/env bash
# Builds what a release consists of, in dist/: the source distribution, and from it one wheel per processor for every Linux
# with glibc 2.28 or later. The CUDA core is not in them.
#
# zig's compiler brings the C library to link against. GCC's libgcc comes before zig's own runtime library, which says that
# no processor has vector instructions, and whose memcpy would replace glibc's.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
zig=$(python -c 'import ziglang; print(ziglang.__path__[0])')/zig

rm -rf dist build/release
python -m build --no-isolation --sdist --outdir dist
for machine in x86_64 aarch64; do
  target="-target $machine-linux-gnu.2.28"
  libgcc=$("$machine-linux-gnu-gcc" -print-libgcc-file-name)
  # The first variable has Python say for which platform it builds.
  _PYTHON_HOST_PLATFORM=linux-$machine JAXCOMM_CUDA=OFF CC="$zig cc $target" CXX="$zig c++ $target" \
    CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine -DCMAKE_MODULE_LINKER_FLAGS=$libgcc" \
    python -m pip wheel dist/*.tar.gz --no-build-isolation --no-deps --wheel-dir build/release
  # auditwheel accepts only platforms of the processor that Python reports.
  python -c "import platform; platform.machine = lambda: '$machine'; from auditwheel.main import main; exit(main())" \
    repair --plat "manylinux_2_28_$machine" --only-plat --wheel-dir dist build/release/*_"$machine".whl
  python -m zipfile -e dist/*_"$machine".whl "build/release/$machine"
  if [[ $(readelf --dyn-syms --wide "build/release/$machine/jaxcomm/ffi/libjaxcomm_cpu.so") != *" UND memcpy"* ]]; then
    echo "release: the core for $machine has a memcpy of its own in place of glibc's. Cure: see which function of zig's" \
      "runtime library it needs that libgcc lacks." >&2
    exit 1
  fi
done

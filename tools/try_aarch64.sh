#!/usr/bin/env bash
# Tries the wheel for aarch64 on another processor, under QEMU: the C++ tests of kernels and transports, compiled like the
# wheel, and sums of two processes.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh aarch64

here=$PWD/build/aarch64
zig=$(.venv/bin/python -c 'import ziglang; print(ziglang.__path__[0])')/zig
mkdir "$here/cache"
cat >"$here/c++" <<END
#!/bin/sh
export ZIG_GLOBAL_CACHE_DIR=$here/cache ZIG_LOCAL_CACHE_DIR=$here/cache
exec $zig c++ -target aarch64-linux-gnu.2.28 "\$@"
END
chmod +x "$here/c++"
# QEMU reports no times of TCP connections (TCP_INFO), which show that a host is silent, and has no process_vm_readv.
needs_system=*Silent*:*Silence*:*HostThatAnswersNothing*:*ItsHostAreProgress:*IdlePathsShow*:*ThatDoesNotRead*
needs_system+=:ExchangesTest.*InPlace:ExchangesTest.TransfersIn*:ExchangesTest.NoRankTakes*
# Not dynamic: each shared library would have a libc++ of its own. Without warnings, because the code heeds those of GCC,
# and clang has others.
"${BAZEL:-/usr/bin/bazel}" test --platforms=//tools:aarch64 --extra_toolchains=//tools:aarch64_toolchain \
  --platform_suffix=-aarch64 --repo_env=CC="$here/c++" --sandbox_writable_path="$here/cache" \
  --dynamic_mode=off --per_file_copt='^cc/.*@-w' --run_under="qemu-aarch64 -L $here/root" --test_timeout=3600 \
  --test_filter="-$needs_system" //cc/kernels/... //cc/transport/...

for transport in shm tcp; do
  JAXCOMM_DEADLINE_S=600 build/released/all/bin/jaxcomm launch -n 2 --transport $transport \
    qemu-aarch64 -L "$here/root" -E "PYTHONPATH=$here/packages" "$here/root/usr/bin/python3.11" tools/try_processes.py
done

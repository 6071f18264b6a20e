#include "cc/kernels/isa.h"

namespace jaxcomm {
namespace {

Isa Detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return Isa::kAvx512;
  }
  // Does not check for F16C: older compilers cannot, and every processor with AVX2 has F16C.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#elif defined(__aarch64__)
  return Isa::kNeon;
#endif
  return Isa::kPlain;
}

}  // namespace

Isa ThisIsa() {
  static const Isa isa = Detect();
  return isa;
}

const char* KernelIsa() {
  switch (ThisIsa()) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kNeon:
      return "neon";
    case Isa::kPlain:
      break;
  }
  return "plain";
}

}  // namespace jaxcomm

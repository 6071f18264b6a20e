#include "cc/kernels/reduce.h"

namespace jaxcomm {
namespace {

struct Isa {
  const char* name;
  ReduceFn (*find)(DType, Reduction);
};

Isa Detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return {"avx512", avx512::Find};
  }
  // Every processor with AVX2 has F16C; the compiler's run-time check knows it only in later versions.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {"avx2", avx2::Find};
#elif defined(__aarch64__)
  return {"neon", neon::Find};
#endif
  return {"plain", plain::Find};
}

const Isa& ThisMachine() {
  static const Isa isa = Detect();
  return isa;
}

}  // namespace

size_t ByteWidth(DType dtype) {
  switch (dtype) {
    case DType::kS8:
    case DType::kU8:
      return 1;
    case DType::kS16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kS32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kS64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 8;
    case DType::kC128:
      return 16;
  }
  return 0;
}

ReduceFn FindReduce(DType dtype, Reduction reduction) { return ThisMachine().find(dtype, reduction); }

const char* KernelIsa() { return ThisMachine().name; }

}  // namespace jaxcomm

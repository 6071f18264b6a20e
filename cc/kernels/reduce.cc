#include "cc/kernels/reduce.h"

#include "cc/kernels/isa.h"

namespace jaxcomm {

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

ReduceFn FindReduce(DType dtype, Reduction reduction) {
  switch (ThisIsa()) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return avx512::Find(dtype, reduction);
    case Isa::kAvx2:
      return avx2::Find(dtype, reduction);
#elif defined(__aarch64__)
    case Isa::kNeon:
      return neon::Find(dtype, reduction);
#endif
    default:
      return plain::Find(dtype, reduction);
  }
}

}  // namespace jaxcomm

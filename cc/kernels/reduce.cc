#include "cc/kernels/reduce.h"

#include "cc/kernels/isa.h"

namespace jaxcomm {

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

#include "cc/kernels/importance.h"

#include <cstring>
#include <numeric>

#include "cc/kernels/isa.h"

namespace jaxcomm {
ImportanceFn FindImportance(DType dtype) {
  switch (ThisIsa()) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return avx512::FindImportance(dtype);
    case Isa::kAvx2:
      return avx2::FindImportance(dtype);
#elif defined(__aarch64__)
    case Isa::kNeon:
      return neon::FindImportance(dtype);
#endif
    default:
      return plain::FindImportance(dtype);
  }
}

ScaleFn FindScale(DType dtype) {
  switch (ThisIsa()) {
#if defined(__x86_64__)
    case Isa::kAvx512:
      return avx512::FindScale(dtype);
    case Isa::kAvx2:
      return avx2::FindScale(dtype);
#elif defined(__aarch64__)
    case Isa::kNeon:
      return neon::FindScale(dtype);
#endif
    default:
      return plain::FindScale(dtype);
  }
}

float LowerMedian(const uint32_t* bins) {
  const uint64_t size = std::accumulate(bins, bins + kBins, uint64_t{0});
  if (size == 0) return 0;
  uint64_t rank = (size - 1) / 2;
  uint32_t bin = 0;
  while (rank >= bins[bin]) rank -= bins[bin++];
  const uint32_t bits = bin << 16;
  float median;
  std::memcpy(&median, &bits, sizeof(median));
  return median;
}

}  // namespace jaxcomm

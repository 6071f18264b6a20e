#include "cc/kernels/importance.h"

#include <cstring>
#include <numeric>

#include "cc/kernels/isa.h"

namespace jaxcomm {

ImportanceFn FindImportance(DType dtype) { return JAXCOMM_OF_THIS_ISA(FindImportance, dtype); }
ScaleFn FindScale(DType dtype) { return JAXCOMM_OF_THIS_ISA(FindScale, dtype); }

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

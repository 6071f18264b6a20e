// The importance of each segment of a gradient, on a GPU: the means and the median of cc/kernels/importance.h.
//
//   Status status = Importance(DType::kF32, gradients, bytes, segment, stride, seed, means, median, bins, stream);
//
// Every pointer is of the device, `bins` has room for kBins counters. One pass over the gradients. Launches and
// returns; may be captured into a graph. The more segments, the more threads: a single huge segment is slow.
#pragma once

#include <cuda_runtime_api.h>

#include "cc/base/status.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

Status Importance(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, uint32_t stride,
                  const uint32_t* seed, float* means, float* median, uint32_t* bins, cudaStream_t stream);

}  // namespace jaxcomm::cuda

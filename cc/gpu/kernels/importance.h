// The importance of each segment of a gradient, on a GPU: the means of cc/kernels/importance.h.
//
//   Status status = Importance(DType::kF32, gradients, bytes, segment, means, stream);
//
// Both pointers are of the device. One pass over the gradients. Launches and returns; may be captured into a graph. The
// more segments, the more threads: a single huge segment is slow.
#pragma once

#include <cuda_runtime_api.h>

#include "cc/base/status.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

Status Importance(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, float* means,
                  cudaStream_t stream);

}  // namespace jaxcomm::cuda

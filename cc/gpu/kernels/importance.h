// Computes the importance of each segment of a gradient on a GPU: the same means as in cc/kernels/importance.h.
//
//   Status status = Importance(DType::kF32, gradients, bytes, segment, means, stream);
//
// Both pointers are device memory. The kernel reads the gradients once. The function launches the kernel and returns at
// once; a CUDA graph may capture the launch. Each segment has a fixed number of threads, so one huge segment is slow.
#pragma once

#include <cuda_runtime_api.h>

#include "cc/base/status.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

Status Importance(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, float* means,
                  cudaStream_t stream);

}  // namespace jaxcomm::cuda

// Element-wise reduction of up to 64 buffers into one, on a GPU.
//
//   Sources sources = {{a, b}, 2};
//   Status status = Reduce(DType::kBF16, Reduction::kSum, sources, a, bytes, stream);
//
// The kernel reads each source once. The order of combination, the rounding and the allowed aliasing are as in
// cc/kernels/reduce.h, so results equal the CPU's bit for bit, except for the payload of a NaN. Buffers begin at
// multiples of 16 bytes. The function launches the kernel and returns at once; a CUDA graph may capture the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cc/base/status.h"
#include "cc/kernels/types.h"

namespace jaxcomm::cuda {

// The sources are passed to the kernel by value.
constexpr size_t kMaxSources = 64;
struct Sources {
  const void* buffers[kMaxSources];
  size_t count;
};

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t stream);

}  // namespace jaxcomm::cuda

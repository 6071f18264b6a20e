// Helpers for .cu files that launch kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/kernels/portable.h"

namespace jaxcomm::cuda {

constexpr unsigned kBlockThreads = 256;

// Returns the number of blocks for about one item per thread. Kernels loop over the items, so fewer threads also work.
inline unsigned Blocks(size_t items) {
  constexpr size_t kMost = size_t{1} << 30;
  return static_cast<unsigned>(std::min(kMost, std::max<size_t>(1, (items + kBlockThreads - 1) / kBlockThreads)));
}

__device__ __forceinline__ GridThread ThisGridThread() {
  return {static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<size_t>(gridDim.x) * blockDim.x};
}

// Returns an error if CUDA did not accept the preceding launch. Does not wait for the kernel; XLA reports faults of the
// running kernel.
inline Status Launched(const char* name) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string(name) + ": CUDA did not launch the kernel: " + cudaGetErrorString(error));
}

}  // namespace jaxcomm::cuda

// How kernels are launched; for .cu files.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/kernels/portable.h"

namespace jaxcomm::cuda {

constexpr unsigned kBlockThreads = 256;

// The number of blocks in which each thread has about one item; kernels loop, so that fewer threads also do.
inline unsigned Blocks(size_t items) {
  constexpr size_t kMost = size_t{1} << 30;
  return static_cast<unsigned>(std::min(kMost, std::max<size_t>(1, (items + kBlockThreads - 1) / kBlockThreads)));
}

__device__ __forceinline__ GridThread ThisGridThread() {
  return {static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<size_t>(gridDim.x) * blockDim.x};
}

// Whether the launch before it was accepted. A fault while a kernel runs is XLA's to find: nothing here waits for it.
inline Status Launched(const char* name) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string(name) + ": CUDA refused to start it: " + cudaGetErrorString(error));
}

}  // namespace jaxcomm::cuda

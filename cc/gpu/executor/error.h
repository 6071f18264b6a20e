// An error of CUDA's as a Status, which begins with what was done.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cc/base/status.h"

namespace jaxcomm::fused {

inline Status CudaError(const std::string& operation, cudaError_t error) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // or the next launch would be blamed for it
  return Status(Code::kInternal, operation + ": " + cudaGetErrorString(error));
}

}  // namespace jaxcomm::fused

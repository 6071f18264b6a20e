// Selects the current device, and converts CUDA's errors.
//
//   const OnDevice on(device);   // the current device while `on` lives
//   if (on.error() != cudaSuccess) return CudaError("choosing the device", on.error());
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&before_);
    error_ = cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_;
};

inline Status CudaError(const std::string& operation, cudaError_t error) {
  if (error == cudaSuccess) return Status();
  cudaGetLastError();  // clears the error, so that the next launch does not report it
  return Status(Code::kInternal, operation + ": " + cudaGetErrorString(error));
}

}  // namespace jaxcomm

// Makes a device the thread's current one, for as long as it lives.
//
//   const OnDevice on(device);
//   if (on.error() != cudaSuccess) ...   // there is no such device
#pragma once

#include <cuda_runtime_api.h>

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

}  // namespace jaxcomm

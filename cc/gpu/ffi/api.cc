// The plain C functions of the CUDA object that Python calls through ctypes.

#include <cuda_runtime_api.h>

#include "cc/ffi/values.h"

namespace jaxcomm {

// How many CUDA devices this process sees; where it cannot tell, a negative number, and `why` is CUDA's reason.
JAXCOMM_EXPORT int jaxcomm_cuda_devices(const char** why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  *why = cudaGetErrorString(error);
  return error == cudaSuccess ? count : -1;
}

// The version of the CUDA runtime in this object, such as 13000.
JAXCOMM_EXPORT int jaxcomm_cuda_runtime() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

}  // namespace jaxcomm

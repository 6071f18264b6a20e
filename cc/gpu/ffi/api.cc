// The C functions that tell of CUDA itself; cc/base/c_function.h says how they end.

#include <cuda_runtime_api.h>

#include <string>

#include "cc/base/c_function.h"

namespace jaxcomm {

// Fails, with CUDA's reason, where this process sees no device.
JAXCOMM_EXPORT int jaxcomm_cuda_check(char* error, int64_t capacity) {
  return Answer(error, capacity, [] {
    int count = 0;
    const cudaError_t outcome = cudaGetDeviceCount(&count);
    return outcome == cudaSuccess && count > 0 ? Status() : Status(Code::kInternal, cudaGetErrorString(outcome));
  });
}

// The version of the CUDA runtime in this object, such as "13.0".
JAXCOMM_EXPORT int jaxcomm_cuda_runtime(char* text, int64_t text_capacity, int64_t* size, char* error,
                                        int64_t capacity) {
  return Answer(error, capacity, [&] {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    CopyText(std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100), text, text_capacity, size);
  });
}

}  // namespace jaxcomm

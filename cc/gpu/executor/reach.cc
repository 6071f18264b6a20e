#include "cc/gpu/executor/reach.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace jaxcomm::fused {
namespace {

// Looks up a function of CUDA's driver, because this shared object is not linked against the driver. Returns null if
// the driver lacks the function.
template <typename Function>
Function* Driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return error == cudaSuccess ? reinterpret_cast<Function*>(function) : nullptr;
}

// Returns a device's access flags for cuMemCreate memory, or -1 for memory of another kind.
int AccessOf(const std::byte* data, int device) {
  static const auto get = Driver<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>("cuMemGetAccess");
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  unsigned long long access = 0;
  const bool known = get != nullptr && get(&access, &location, reinterpret_cast<CUdeviceptr>(data)) == CUDA_SUCCESS;
  return known ? static_cast<int>(access) : -1;
}

bool IsOfMalloc(const std::byte* data) {
  static const auto get = Driver<CUresult(void*, CUpointer_attribute, CUdeviceptr)>("cuPointerGetAttribute");
  int plain = 0;
  return get != nullptr &&
         get(&plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(data)) ==
             CUDA_SUCCESS &&
         plain != 0;
}

}  // namespace

Status CheckReachable(const std::byte* data, size_t bytes, const std::vector<int>& devices) {
  if (bytes == 0 || IsOfMalloc(data)) return Status();
  for (const int device : devices) {
    for (const std::byte* at : {data, data + bytes - 1}) {  // a buffer may span several mappings
      const int access = AccessOf(at, device);
      if (access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) continue;
      const std::string who = "GPU " + std::to_string(device) + " may not touch this operand, which lies in memory of ";
      return Status(Code::kUnimplemented,
                    (access < 0 ? "other GPUs cannot reach memory of this allocator" : who + "cuMemCreate") +
                        ".\n  Cure: run without XLA_PYTHON_CLIENT_ALLOCATOR, or call jax.lax for this one.");
    }
  }
  return Status();
}

std::string MemoryKind(const std::byte* data, int device) {
  if (IsOfMalloc(data)) return "cudaMalloc";
  return AccessOf(data, device) >= 0 ? "cuMemCreate" : "neither cuMemCreate's nor cudaMalloc's";
}

}  // namespace jaxcomm::fused

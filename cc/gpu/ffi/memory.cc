#include "cc/gpu/ffi/memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace jaxcomm {
namespace {

// False: the driver does not know it.
template <typename Value>
bool Ask(const void* data, CUpointer_attribute attribute, Value& value) {
  using GetAttribute = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
  static const GetAttribute get = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess ? reinterpret_cast<GetAttribute>(function) : nullptr;
  }();
  return get != nullptr && get(&value, attribute, reinterpret_cast<CUdeviceptr>(data)) == CUDA_SUCCESS;
}

}  // namespace

// Peers reach what cudaMalloc gave once they are told to; pools and mapped memory need more than that, and a kernel
// that tried would take the whole process with it.
Status CheckReachable(const void* data) {
  int plain = 0;
  if (Ask(data, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, plain) && plain != 0) return Status();
  return Status(
      Code::kUnimplemented,
      "other GPUs cannot reach memory of this allocator.\n  Cure: run without XLA_PYTHON_CLIENT_ALLOCATOR, or "
      "call jax.lax for this one.");
}

Result<fused::Region> RegionOf(const void* data) {
  Status reachable = CheckReachable(data);
  if (!reachable.ok()) return reachable;
  CUdeviceptr base = 0;
  fused::Region region{nullptr, 0};
  if (!Ask(data, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base) ||
      !Ask(data, CU_POINTER_ATTRIBUTE_RANGE_SIZE, region.bytes)) {
    return Status(Code::kInternal, "CUDA does not tell where an allocation begins and ends");
  }
  region.base = reinterpret_cast<std::byte*>(base);
  return region;
}

}  // namespace jaxcomm

#include "cc/gpu/executor/one_process.h"

#include <string>
#include <utility>

#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/on_device.h"

namespace jaxcomm::fused {

Status ConnectPeers(const Places& places) {
  for (const size_t from : places.here) {
    const OnDevice on(places.all[from].device);
    for (const size_t to : places.here) {
      if (to == from) continue;
      const int device = places.all[from].device, peer = places.all[to].device;
      const std::string what =
          "GPU " + std::to_string(device) + " cannot reach the memory of GPU " + std::to_string(peer);
      int can = 0;
      if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, device, peer)) return CudaError(what, error);
      if (can == 0) {
        return Status(
            Code::kUnimplemented,
            what + ".\n  Cure: reduce over GPUs that NVLink or one PCIe root connects, or call jax.lax here.");
      }
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else if (error != cudaSuccess) {
        return CudaError(what, error);
      }
    }
  }
  return Status();
}

Result<DeviceMemory> AllocateOn(int device, size_t bytes) {
  const OnDevice on(device);
  void* memory = nullptr;
  cudaError_t error = on.error();
  if (error == cudaSuccess) error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) return CudaError("memory on GPU " + std::to_string(device), error);
  return DeviceMemory(static_cast<std::byte*>(memory));
}

Result<std::byte*> OneProcess::Allocate(size_t place, size_t bytes) {
  Result<DeviceMemory> block = AllocateOn(places_.all[place].device, bytes);
  if (!block.ok()) return block.status();
  return (blocks_[place] = std::move(block.value())).get();
}

Status OneProcess::Meet(const Status& mine) { return mine.ok() ? ConnectPeers(places_) : mine; }

}  // namespace jaxcomm::fused

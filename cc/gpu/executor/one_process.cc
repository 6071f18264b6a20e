#include "cc/gpu/executor/one_process.h"

#include <string>
#include <utility>

#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/on_device.h"

namespace jaxcomm::fused {

Status ConnectPeers(const Slots& slots) {
  for (const size_t from : slots.here) {
    const OnDevice on(slots.all[from].device);
    for (const size_t to : slots.here) {
      if (to == from) continue;
      const int device = slots.all[from].device, peer = slots.all[to].device;
      const std::string failed =
          "GPU " + std::to_string(device) + " cannot reach the memory of GPU " + std::to_string(peer);
      int can = 0;
      if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, device, peer)) return CudaError(failed, error);
      if (can == 0) {
        return Status(
            Code::kUnimplemented,
            failed + ".\n  Cure: reduce over GPUs that NVLink or one PCIe root connects, or call jax.lax here.");
      }
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else if (error != cudaSuccess) {
        return CudaError(failed, error);
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

Result<std::byte*> OneProcess::Allocate(size_t slot, size_t bytes) {
  Result<DeviceMemory> block = AllocateOn(slots_.all[slot].device, bytes);
  if (!block.ok()) return block.status();
  return (blocks_[slot] = std::move(block.value())).get();
}

Status OneProcess::Connect(const Status& mine) { return mine.ok() ? ConnectPeers(slots_) : mine; }

}  // namespace jaxcomm::fused

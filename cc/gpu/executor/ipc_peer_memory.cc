#include "cc/gpu/executor/ipc_peer_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <vector>

#include "cc/gpu/executor/error.h"
#include "cc/gpu/executor/on_device.h"

namespace jaxcomm::fused {
namespace {

// Smaller allocations share their pages with others, which would be opened along with them.
constexpr size_t kPage = size_t{2} << 20;

struct Handles {
  cudaIpcMemHandle_t block, region;
};
static_assert(sizeof(Handles) <= sizeof(Bootstrap::Offer));

}  // namespace

struct IpcPeerMemory::DeferredFree {
  std::unique_ptr<Bootstrap> bootstrap;
  Blocks blocks;

  static void Add(DeferredFree deferred) {
    std::lock_guard<std::mutex> lock(Mutex());
    All().push_back(std::move(deferred));
  }
  static void FreeUnused() {
    std::vector<DeferredFree> unused;  // ends after the lock: CUDA frees nothing before the device's kernels have ended
    std::lock_guard<std::mutex> lock(Mutex());
    const auto first = std::partition(All().begin(), All().end(),
                                      [](const DeferredFree& deferred) { return !deferred.bootstrap->AllClosed(); });
    std::move(first, All().end(), std::back_inserter(unused));
    All().erase(first, All().end());
  }

 private:
  // They live until the process ends: who is still connected then may still touch them.
  static std::vector<DeferredFree>& All() {
    static std::vector<DeferredFree>* all = std::make_unique<std::vector<DeferredFree>>().release();
    return *all;
  }
  static std::mutex& Mutex() {
    static std::mutex* mutex = std::make_unique<std::mutex>().release();
    return *mutex;
  }
};

IpcPeerMemory::~IpcPeerMemory() {
  for (const size_t slot : slots_.here) {
    const OnDevice on(slots_.all[slot].device);
    cudaDeviceSynchronize();
  }
  opened_.clear();
  if (!bootstrap_) return;  // nobody has heard of the blocks
  bootstrap_->Close();
  DeferredFree::Add({std::move(bootstrap_), std::move(blocks_)});
  DeferredFree::FreeUnused();
}

Result<std::byte*> IpcPeerMemory::Allocate(size_t slot, size_t bytes) {
  DeferredFree::FreeUnused();
  Result<DeviceMemory> block = AllocateOn(slots_.all[slot].device, (bytes + kPage - 1) / kPage * kPage);
  if (!block.ok()) return block.status();
  return (blocks_[slot] = std::move(block.value())).get();
}

Status IpcPeerMemory::Connect(const Status& mine) {
  Result<std::unique_ptr<Bootstrap>> bootstrap = Bootstrap::Open(name_, slots_);
  if (!bootstrap.ok()) return bootstrap.status();
  bootstrap_ = std::move(bootstrap.value());
  Status status = mine;
  if (status.ok()) status = ConnectPeers(slots_);
  if (status.ok()) status = Offer();
  status = bootstrap_->Publish(status, timeout_);
  return status.ok() ? bootstrap_->Confirm(OpenOthers(), timeout_) : status;
}

Status IpcPeerMemory::Offer() {
  for (const size_t slot : slots_.here) {
    const int device = slots_.all[slot].device;
    const std::string failed = "GPU " + std::to_string(device) + "'s memory cannot be shared with other processes";
    const auto region = regions_.find(device);
    if (region == regions_.end()) return InvalidArgument(failed + ": the core was not told where it is");
    const OnDevice on(device);
    Handles handles;
    cudaError_t error = cudaIpcGetMemHandle(&handles.block, blocks_.at(slot).get());
    if (error == cudaSuccess) error = cudaIpcGetMemHandle(&handles.region, region->second.base);
    if (error != cudaSuccess) return CudaError(failed, error);
    std::memcpy(bootstrap_->offer(slot).data(), &handles, sizeof(handles));
  }
  return Status();
}

Status IpcPeerMemory::OpenOthers() {
  for (const size_t from : slots_.here) {
    for (size_t to = 0; to < slots_.all.size(); ++to) {
      if (IsHere(to)) continue;
      Handles handles;
      std::memcpy(&handles, bootstrap_->offer(to).data(), sizeof(handles));
      Result<Opened> block = Open(slots_.all[from].device, handles.block);
      Result<Opened> region = block.ok() ? Open(slots_.all[from].device, handles.region) : block.status();
      if (!region.ok()) {
        return Status(region.status().code(),
                      "GPU " + std::to_string(slots_.all[from].device) + " cannot reach the memory of GPU " +
                          std::to_string(slots_.all[to].device) + " of process " +
                          std::to_string(slots_.all[to].process) + ": " + region.status().message() +
                          ".\n  Cure: reduce over GPUs that NVLink or one PCIe root connects, or call jax.lax here.");
      }
      opened_[{from, to}] = {std::move(block.value()), std::move(region.value())};
    }
  }
  return Status();
}

Result<IpcPeerMemory::Opened> IpcPeerMemory::Open(int device, const cudaIpcMemHandle_t& handle) {
  const OnDevice on(device);
  void* memory = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return CudaError("CUDA IPC", error);
  return Opened(static_cast<std::byte*>(memory), Close{device});
}

void IpcPeerMemory::Close::operator()(std::byte* memory) const {
  const OnDevice on(device);
  cudaIpcCloseMemHandle(memory);
}

PeerView IpcPeerMemory::PeerViewOf(size_t from, size_t to) const {
  const auto view = [](const std::byte* region, std::byte* block) {
    return PeerView{block, reinterpret_cast<uint64_t>(region)};
  };
  if (IsHere(to)) return view(regions_.at(slots_.all[to].device).base, blocks_.at(to).get());
  const OpenedSlot& opened = opened_.at({from, to});
  return view(opened.region.get(), opened.block.get());
}

Status IpcPeerMemory::CheckReach(size_t slot, const std::byte* data, int64_t bytes) const {
  const Region& region = regions_.at(slots_.all[slot].device);
  const auto begin = reinterpret_cast<uintptr_t>(region.base), at = reinterpret_cast<uintptr_t>(data);
  if (at >= begin && at + static_cast<size_t>(bytes) <= begin + region.bytes) return Status();
  return Status(
      Code::kUnimplemented,
      "an operand on GPU " + std::to_string(slots_.all[slot].device) +
          " lies outside of the memory that other processes have opened.\n  Cure: let XLA allocate all of its "
          "memory at once (leave XLA_PYTHON_CLIENT_PREALLOCATE and XLA_PYTHON_CLIENT_ALLOCATOR alone), or "
          "call jax.lax for this one.");
}

}  // namespace jaxcomm::fused

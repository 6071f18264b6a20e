#include "cc/gpu/executor/ipc_meeting.h"

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
static_assert(sizeof(Handles) <= sizeof(Rendezvous::Offer));

}  // namespace

struct IpcMeeting::Left {
  std::unique_ptr<Rendezvous> rendezvous;
  Blocks blocks;

  static void Add(Left left) {
    std::lock_guard<std::mutex> lock(Mutex());
    All().push_back(std::move(left));
  }
  static void FreeUnused() {
    std::vector<Left> unused;  // ends after the lock: CUDA frees nothing before the device's kernels have ended
    std::lock_guard<std::mutex> lock(Mutex());
    const auto first =
        std::partition(All().begin(), All().end(), [](const Left& left) { return !left.rendezvous->Deserted(); });
    std::move(first, All().end(), std::back_inserter(unused));
    All().erase(first, All().end());
  }

 private:
  // They live until the process ends: who is still connected then may still touch them.
  static std::vector<Left>& All() {
    static std::vector<Left>* all = std::make_unique<std::vector<Left>>().release();
    return *all;
  }
  static std::mutex& Mutex() {
    static std::mutex* mutex = std::make_unique<std::mutex>().release();
    return *mutex;
  }
};

IpcMeeting::~IpcMeeting() {
  for (const size_t place : places_.here) {
    const OnDevice on(places_.all[place].device);
    cudaDeviceSynchronize();
  }
  opened_.clear();
  if (!rendezvous_) return;  // nobody has heard of the blocks
  rendezvous_->Leave();
  Left::Add({std::move(rendezvous_), std::move(blocks_)});
  Left::FreeUnused();
}

Result<std::byte*> IpcMeeting::Allocate(size_t place, size_t bytes) {
  Left::FreeUnused();
  Result<DeviceMemory> block = AllocateOn(places_.all[place].device, (bytes + kPage - 1) / kPage * kPage);
  if (!block.ok()) return block.status();
  return (blocks_[place] = std::move(block.value())).get();
}

Status IpcMeeting::Meet(const Status& mine) {
  Result<std::unique_ptr<Rendezvous>> rendezvous = Rendezvous::Open(name_, places_);
  if (!rendezvous.ok()) return rendezvous.status();
  rendezvous_ = std::move(rendezvous.value());
  Status status = mine;
  if (status.ok()) status = ConnectPeers(places_);
  if (status.ok()) status = Offer();
  status = rendezvous_->Come(status, patience_);
  return status.ok() ? rendezvous_->Settle(OpenOthers(), patience_) : status;
}

Status IpcMeeting::Offer() {
  for (const size_t place : places_.here) {
    const int device = places_.all[place].device;
    const std::string what = "GPU " + std::to_string(device) + "'s memory cannot be shared with other processes";
    const auto region = regions_.find(device);
    if (region == regions_.end()) return InvalidArgument(what + ": the core was not told where it is");
    const OnDevice on(device);
    Handles handles;
    cudaError_t error = cudaIpcGetMemHandle(&handles.block, blocks_.at(place).get());
    if (error == cudaSuccess) error = cudaIpcGetMemHandle(&handles.region, region->second.base);
    if (error != cudaSuccess) return CudaError(what, error);
    std::memcpy(rendezvous_->offer(place).data(), &handles, sizeof(handles));
  }
  return Status();
}

Status IpcMeeting::OpenOthers() {
  for (const size_t from : places_.here) {
    for (size_t to = 0; to < places_.all.size(); ++to) {
      if (IsHere(to)) continue;
      Handles handles;
      std::memcpy(&handles, rendezvous_->offer(to).data(), sizeof(handles));
      Result<Opened> block = Open(places_.all[from].device, handles.block);
      Result<Opened> region = block.ok() ? Open(places_.all[from].device, handles.region) : block.status();
      if (!region.ok()) {
        return Status(region.status().code(),
                      "GPU " + std::to_string(places_.all[from].device) + " cannot reach the memory of GPU " +
                          std::to_string(places_.all[to].device) + " of process " +
                          std::to_string(places_.all[to].process) + ": " + region.status().message() +
                          ".\n  Cure: reduce over GPUs that NVLink or one PCIe root connects, or call jax.lax here.");
      }
      opened_[{from, to}] = {std::move(block.value()), std::move(region.value())};
    }
  }
  return Status();
}

Result<IpcMeeting::Opened> IpcMeeting::Open(int device, const cudaIpcMemHandle_t& handle) {
  const OnDevice on(device);
  void* memory = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return CudaError("CUDA IPC", error);
  return Opened(static_cast<std::byte*>(memory), Close{device});
}

void IpcMeeting::Close::operator()(std::byte* memory) const {
  const OnDevice on(device);
  cudaIpcCloseMemHandle(memory);
}

View IpcMeeting::See(size_t from, size_t to) const {
  const auto view = [](const std::byte* region, std::byte* block) {
    return View{block, reinterpret_cast<uint64_t>(region)};
  };
  if (IsHere(to)) return view(regions_.at(places_.all[to].device).base, blocks_.at(to).get());
  const OpenedPlace& opened = opened_.at({from, to});
  return view(opened.region.get(), opened.block.get());
}

Status IpcMeeting::CheckReach(size_t place, const std::byte* data, int64_t bytes) const {
  const Region& region = regions_.at(places_.all[place].device);
  const auto begin = reinterpret_cast<uintptr_t>(region.base), at = reinterpret_cast<uintptr_t>(data);
  if (at >= begin && at + static_cast<size_t>(bytes) <= begin + region.bytes) return Status();
  return Status(
      Code::kUnimplemented,
      "an operand on GPU " + std::to_string(places_.all[place].device) +
          " lies outside of the memory that other processes have opened.\n  Cure: let XLA allocate all of its "
          "memory at once (leave XLA_PYTHON_CLIENT_PREALLOCATE and XLA_PYTHON_CLIENT_ALLOCATOR alone), or "
          "call jax.lax for this one.");
}

}  // namespace jaxcomm::fused

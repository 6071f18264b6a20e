// The peer memory of slots that are all in this process: their devices reach each other's memory as it is.
//
//   std::unique_ptr<PeerMemory> memory = std::make_unique<OneProcess>(slots);
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>

#include "cc/gpu/executor/peer_memory.h"
#include "cc/gpu/executor/slots.h"

namespace jaxcomm::fused {

// Lets the devices of this process reach each other's memory.
Status ConnectPeers(const Slots& slots);

struct FreeOnDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeOnDevice>;

Result<DeviceMemory> AllocateOn(int device, size_t bytes);

class OneProcess : public PeerMemory {
 public:
  explicit OneProcess(const Slots& slots) : slots_(slots) {}

  Result<std::byte*> Allocate(size_t slot, size_t bytes) override;
  Status Connect(const Status& mine) override;
  PeerView PeerViewOf(size_t, size_t to) const override { return {blocks_.at(to).get(), /*origin=*/0}; }
  Status CheckReach(size_t, const std::byte*, int64_t) const override { return Status(); }

 private:
  const Slots slots_;
  std::map<size_t, DeviceMemory> blocks_;  // by slot
};

}  // namespace jaxcomm::fused

// The peer memory of processes of one host, by CUDA IPC: each opens the others' blocks, and the whole regions of memory
// in which their operands lie, so that nothing is copied.
//
//   IpcPeerMemory memory("3f9a01c2-0", slots, {{0, {base, bytes}}}, deadline);   // a name that nobody uses twice
//
// Memory that another process has opened must not be freed: the blocks outlive their peer memory, and those
// that nobody uses any more are freed when another one begins or ends.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cc/gpu/executor/bootstrap.h"
#include "cc/gpu/executor/one_process.h"
#include "cc/gpu/executor/peer_memory.h"
#include "cc/gpu/executor/slots.h"

namespace jaxcomm::fused {

// An allocation on a device, from its first byte.
struct Region {
  std::byte* base;
  size_t bytes;
};

class IpcPeerMemory : public PeerMemory {
 public:
  // `regions`: where operands lie, by device of this process.
  IpcPeerMemory(std::string name, const Slots& slots, std::map<int, Region> regions, Bootstrap::Timeout timeout)
      : name_(std::move(name)), slots_(slots), regions_(std::move(regions)), timeout_(timeout) {}
  ~IpcPeerMemory() override;

  Result<std::byte*> Allocate(size_t slot, size_t bytes) override;
  Status Connect(const Status& mine) override;
  PeerView PeerViewOf(size_t from, size_t to) const override;
  Status CheckReach(size_t slot, const std::byte* data, int64_t bytes) const override;

 private:
  using Blocks = std::map<size_t, DeviceMemory>;  // by slot

  // Another process's memory, as a device of this one has opened it.
  struct Close {
    int device;
    void operator()(std::byte* memory) const;
  };
  using Opened = std::unique_ptr<std::byte, Close>;
  struct OpenedSlot {
    Opened block, region;
  };

  // Blocks that others may still use.
  struct DeferredFree;

  Status Offer();
  Status OpenOthers();
  static Result<Opened> Open(int device, const cudaIpcMemHandle_t& handle);
  bool IsHere(size_t slot) const { return slots_.all[slot].process == slots_.process; }

  const std::string name_;
  const Slots slots_;
  const std::map<int, Region> regions_;
  const Bootstrap::Timeout timeout_;
  std::unique_ptr<Bootstrap> bootstrap_;
  Blocks blocks_;
  std::map<std::pair<size_t, size_t>, OpenedSlot> opened_;  // by slot here and there
};

}  // namespace jaxcomm::fused

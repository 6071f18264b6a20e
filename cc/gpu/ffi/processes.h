// This process among those of its job, and how ranks in several of them reach each other's memory.
//
//   Result<std::unique_ptr<fused::PeerMemory>> memory = ThisProcess().PeerMemoryOf(slots, "psum, data, …", timeout);
//
// It knows of the job from Python, through exported functions of their own. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/executor/ipc_peer_memory.h"
#include "cc/gpu/executor/peer_memory.h"
#include "cc/gpu/executor/slots.h"

namespace jaxcomm {

class JobProcess {
 public:
  // `job`: a name that its processes have in common and no other job has.
  void Join(std::string job, uint32_t number);
  void AddRegion(int device, const fused::Region& region);

  uint32_t number();

  // `call` is the same in all processes, and they come in one order to the same `call`.
  Result<std::unique_ptr<fused::PeerMemory>> PeerMemoryOf(const fused::Slots& slots, const std::string& call,
                                                          std::chrono::steady_clock::duration timeout);

 private:
  std::mutex mutex_;
  std::string job_;
  uint32_t number_ = 0;
  std::map<int, fused::Region> regions_;       // by device
  std::map<std::string, uint32_t> connected_;  // how often, by call
};

JobProcess& ThisProcess();

}  // namespace jaxcomm

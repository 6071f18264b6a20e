// The ranks of one call site whose memory all their devices can reach, those of this process and, through the peer
// memory, those of others; for tests and measurements also several ranks on one device.
//
//   Result<std::shared_ptr<Ranks>> ranks = Ranks::Make(name, program, slots, std::move(peer_memory), stats);
//   Status status = ranks.value()->Run(rank, call, stream);   // on every device; an error of this launch
//   Status status = ranks.value()->Check();                   // of a call that has failed and that no caller has had
//
// Run neither blocks nor allocates. Calls of one Ranks follow each other on one stream of each device, and every device
// must run as many: a call that only some of them launch fails there at its deadline, and so do those after it. A call
// that all launched may fail, and the next one works; what the failed one leaves are NaN, or the largest integer, where
// it has no sum. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/stats.h"
#include "cc/gpu/executor/block.h"
#include "cc/gpu/executor/clocks.h"
#include "cc/gpu/executor/failure_record.h"
#include "cc/gpu/executor/fused.h"
#include "cc/gpu/executor/peer_memory.h"
#include "cc/gpu/executor/slots.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

class Ranks {
 public:
  struct Call {
    std::byte* data;    // of the first rank of the device; the next ranks' follow
    int64_t bytes;      // of one rank
    const int* delays;  // on the device, a number of microseconds per rank; or null
    DType dtype;
    Reduction reduction;
    double deadline;  // seconds
  };

  // Allocates on all slots of this process and connects all, which may wait for other processes; not while a stream
  // is captured.
  static Result<std::shared_ptr<Ranks>> Make(CallName name, std::shared_ptr<const Program> program, Slots slots,
                                             std::unique_ptr<PeerMemory> peer_memory, Stats& stats);

  // Loads the kernel onto a rank's device; Run would do so while other ranks wait.
  Status Load(uint32_t rank, DType dtype, Reduction reduction) const;

  // Whether Run may be called with this operand; to be asked of all of a step's calls before the first is made.
  Status CheckReach(uint32_t rank, const std::byte* data, int64_t bytes) const;

  // Starts the ranks of one device, of which `rank` is the first.
  Status Run(uint32_t rank, const Call& call, cudaStream_t stream);
  Status Check();

  // Records the clocks of the calls that have ended since it was last called, of at most kKeptCalls.
  Status RecordCalls();

 private:
  struct FreeHost {
    void operator()(void* memory) const { cudaFreeHost(memory); }
  };

  Ranks(CallName name, std::shared_ptr<const Program> program, Slots slots, std::unique_ptr<PeerMemory> peer_memory);

  Status Named(const Status& status) const;
  Status CheckSize() const;
  Status Allocate();
  Status Fill(size_t slot);
  Status Connect();
  Status PublishClocks();
  Result<SlotClocks> ClocksOf(size_t slot) const;

  const CallName name_;
  const std::shared_ptr<const Program> program_;
  const Slots slots_;
  const Table table_;
  const BlockLayout layout_;
  std::unique_ptr<FailureRecord[], FreeHost>
      failures_;                    // outlives the peer memory, whose end awaits that of the last call
  uint64_t* clock_word_ = nullptr;  // behind them
  const std::unique_ptr<PeerMemory> peer_memory_;
  uint32_t num_blocks_ = 0;
  std::map<size_t, Arguments> arguments_;  // of each slot here, but for the call's
  std::shared_ptr<SiteStats> stats_;
  std::mutex checking_;
  uint64_t checked_ = 0;  // failures of calls up to this one were returned
  // Held while devices are waited for, whose kernels may wait for a launch: no launch waits for it.
  std::mutex recording_;
  uint64_t recorded_ = 0;  // clocks of calls up to this one were read
};

}  // namespace jaxcomm::fused

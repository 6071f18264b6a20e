// The ranks of one call site on devices of this process, which reach each other's memory; for tests and measurements
// also several ranks on one device.
//
//   Result<std::shared_ptr<Ranks>> ranks = Ranks::Make(name, program, /*devices=*/{0, 1, 2, 3}, stats);
//   Status status = ranks.value()->Run(rank, call, stream);   // on every device; an error of this launch
//   Status status = ranks.value()->Check();                   // of a call that has failed and that no caller has had
//
// Run neither blocks nor allocates. Calls of one Ranks follow each other on one stream of each device, and every device
// must run as many: a call that only some of them launch fails there at its deadline, and so do those after it. After a
// failed call that all launched, which leaves NaN or the largest integer, the next one works. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/call_site_stats.h"
#include "cc/gpu/executor/block.h"
#include "cc/gpu/executor/failure_record.h"
#include "cc/gpu/executor/fused.h"
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

  // `devices` by rank, those of one device neighbours. Allocates on all; not while a stream is captured.
  static Result<std::shared_ptr<Ranks>> Make(CallName name, std::shared_ptr<const Program> program,
                                             const std::vector<int>& devices, CallSiteStats& stats);
  ~Ranks();

  // Loads the kernel onto a rank's device; Run would do so while other ranks wait.
  Status Load(uint32_t rank, DType dtype, Reduction reduction) const;

  // Starts the ranks of one device, of which `rank` is the first.
  Status Run(uint32_t rank, const Call& call, cudaStream_t stream);
  Status Check();

  // Records the clocks of the calls that have ended since it was last called, of at most kKeptCalls.
  Status RecordCalls();

 private:
  // A device, and those ranks that it has.
  struct Slot {
    int device;
    uint32_t first_rank, num_ranks;
    Block block;
  };
  struct FreeHost {
    void operator()(void* memory) const { cudaFreeHost(memory); }
  };

  Ranks(CallName name, std::shared_ptr<const Program> program);

  Status FindSlots(const std::vector<int>& devices);
  Status ConnectPeers() const;
  Status Allocate();
  Status ReadClocks(std::vector<std::vector<uint64_t>>& clocks, int64_t& error) const;
  std::vector<uint64_t> Merged(const std::vector<std::vector<uint64_t>>& clocks, uint64_t call) const;

  const CallName name_;
  const std::shared_ptr<const Program> program_;
  const Table table_;
  const size_t clock_words_;                             // of a call
  std::unique_ptr<FailureRecord[], FreeHost> failures_;  // outlives the blocks, whose end awaits that of the last call
  uint64_t* clock_word_ = nullptr;                       // behind them
  std::vector<Slot> slots_;
  std::vector<size_t> slot_of_;  // by rank
  uint32_t num_blocks_ = 0;
  std::shared_ptr<SiteStats> stats_;
  std::mutex checking_;
  uint64_t checked_ = 0;  // failures of calls up to this one were returned
  // Held while devices are waited for, whose kernels may wait for a launch: no launch waits for it.
  std::mutex recording_;
  uint64_t recorded_ = 0;  // clocks of calls up to this one were read
};

}  // namespace jaxcomm::fused

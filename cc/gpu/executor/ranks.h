// The ranks of one call site. Their devices belong to this process, and each device can access the memory of all other
// devices. Tests and measurements also put several ranks on one device.
//
//   Result<std::shared_ptr<Ranks>> ranks = Ranks::Make(name, program, /*devices=*/{0, 1, 2, 3}, stats);
//   Status status = ranks.value()->Run(rank, call, stream);   // for every device; returns the launch's error
//   Status status = ranks.value()->Check();                   // returns the error of a failed call, once
//
// Run neither blocks nor allocates. The calls of one Ranks object run in order, on one stream per device, and every
// device must launch all calls. If only some devices launch a call, the call fails on these devices at its deadline,
// and later calls fail too. If a call that all devices launched fails, each result is NaN or the largest integer, and
// the next call works. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/call_site_stats.h"
#include "cc/gpu/executor/block.h"
#include "cc/gpu/executor/failure_record.h"
#include "cc/gpu/executor/fused.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

class Ranks {
 public:
  struct Call {
    std::byte* data;    // the data of the device's first rank; the data of its other ranks follows
    int64_t bytes;      // per rank
    const int* delays;  // the delay of each rank, in microseconds, in device memory; null for no delays
    DType dtype;
    Reduction reduction;
    double deadline;  // seconds
  };

  // `devices` has the device of each rank. The ranks of one device are consecutive. Allocates memory on all devices, so
  // it must not run during a stream capture.
  static Result<std::shared_ptr<Ranks>> Make(CallName name, std::shared_ptr<const Program> program,
                                             const std::vector<int>& devices, CallSiteStats& stats);
  ~Ranks();

  // Loads the kernel onto a rank's device. Without this call, the first Run loads the kernel while other ranks wait.
  Status Load(uint32_t rank, DType dtype, Reduction reduction) const;

  // Starts all ranks of one device. `rank` is the device's first rank.
  Status Run(uint32_t rank, const Call& call, cudaStream_t stream);
  Status Check();

  // Adds to the statistics the calls that ended since the previous RecordCalls, but only the latest kKeptCalls.
  Status RecordCalls();

 private:
  // A device and its ranks.
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
  const size_t clock_words_;                             // number of clock words per call
  std::unique_ptr<FailureRecord[], FreeHost> failures_;  // outlives the kernels, because the destructor waits for them
  uint64_t* clock_word_ = nullptr;                       // the word to which a device writes its time in CompareClock
  std::vector<Slot> slots_;
  std::vector<size_t> slot_of_;  // by rank
  uint32_t num_blocks_ = 0;
  std::shared_ptr<SiteStats> stats_;
  std::mutex checking_;
  uint64_t checked_ = 0;  // Check has returned the failures of calls up to this number
  // RecordCalls holds this mutex while it waits for devices, whose kernels may wait for another device's launch. So Run
  // must not lock this mutex.
  std::mutex recording_;
  uint64_t recorded_ = 0;  // RecordCalls has handled the calls up to this number
};

}  // namespace jaxcomm::fused

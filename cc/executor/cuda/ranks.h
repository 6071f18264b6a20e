// The ranks of one call site whose memory all their devices can reach: those of one process, and for tests and
// measurements several on one device.
//
//   Result<std::shared_ptr<Ranks>> ranks = Ranks::Make(name, program, /*devices=*/{0, 1, 2, 3}, stats);
//   Status status = ranks.value()->Run(rank, call, stream);   // on every device; an error of this launch, or of a call
//                                                             // before that nobody was told of yet
//   Status status = ranks.value()->Check();                   // an error of the calls that have ended
//
// Run neither blocks nor allocates. Calls of one Ranks follow each other on one stream of each device, and every device
// must run as many: a call that only some of them launch fails there at its deadline, and so do those after it. A call
// that all launched may fail, and the next one works. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/cuda/fused.h"
#include "cc/executor/cuda/on_device.h"
#include "cc/executor/cuda/told.h"
#include "cc/executor/stats.h"
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

  // `devices` has the device of each rank; ranks of one device are neighbours. Allocates on all of them and lets each
  // reach the others' memory; not while a stream is captured.
  static Result<std::shared_ptr<Ranks>> Make(CallName name, std::shared_ptr<const Program> program,
                                             const std::vector<int>& devices, Stats& stats);

  // Loads the kernel onto a rank's device; Run would do so while other ranks wait.
  Status Load(uint32_t rank, DType dtype, Reduction reduction) const;

  // Starts the ranks of one device, of which `rank` is the first.
  Status Run(uint32_t rank, const Call& call, cudaStream_t stream);
  Status Check();

  // Records the clocks of the calls that have ended since it was last called, of at most kKeptCalls.
  Status RecordCalls();

 private:
  struct FreeDevice {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  struct FreeHost {
    void operator()(void* memory) const { cudaFreeHost(memory); }
  };

  // What lies on one device: the program's tables, its ranks' flags, and the clocks of its ranks.
  struct Place {
    int device;
    uint32_t first_rank, num_ranks;
    std::unique_ptr<void, FreeDevice> memory;
    uint64_t* flags;  // of its first rank
    Arguments arguments;
    int64_t offset;  // nanoseconds from the device's clock to the host's
  };

  Ranks(CallName name, std::shared_ptr<const Program> program) : name_(std::move(name)), program_(std::move(program)) {}

  Status FindPlaces(const std::vector<int>& devices);
  Status ConnectPeers() const;
  Status Allocate();
  Status Fill(Place& place, const Table& table);
  Status CompareClocks();
  std::vector<uint64_t> Merged(uint64_t call, const std::vector<std::vector<uint64_t>>& clocks) const;

  const CallName name_;
  const std::shared_ptr<const Program> program_;
  std::vector<Place> places_;
  std::vector<size_t> place_of_;  // by rank
  uint32_t rows_ = 0;
  std::unique_ptr<Told[], FreeHost> told_;
  std::shared_ptr<SiteStats> stats_;
  std::mutex mutex_;       // guards what follows
  uint64_t checked_ = 0;   // failures of calls up to this one were told
  uint64_t recorded_ = 0;  // clocks of calls up to this one were read
};

}  // namespace jaxcomm::fused

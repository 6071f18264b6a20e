// Ranks that share one device, for tests and measurements: rank r's buffer is row r of an array, and one cooperative
// launch runs all of them.
//
//   Result<std::shared_ptr<VirtualRanks>> ranks = VirtualRanks::Make(name, program, stats);   // on the current device
//   Status status = ranks.value()->Run(call, stream);   // an error of an earlier call, or of this launch
//   Status status = ranks.value()->Check();             // an error of the calls that have ended
//
// Calls of one VirtualRanks follow each other on one stream. After an error the next call works.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>

#include "cc/base/status.h"
#include "cc/executor/cuda/fused.h"
#include "cc/executor/cuda/told.h"
#include "cc/executor/stats.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

class VirtualRanks {
 public:
  struct Call {
    std::byte* data;  // [ranks][bytes / ranks]
    int64_t bytes;
    const int* delays;  // on the device, a number of microseconds per rank
    DType dtype;
    Reduction reduction;
    double deadline;  // seconds
  };

  // Allocates on the current device; not while a stream is captured.
  static Result<std::shared_ptr<VirtualRanks>> Make(CallName name, std::shared_ptr<const Program> program,
                                                    Stats& stats);

  Status Run(const Call& call, cudaStream_t stream);
  Status Check();

  // Records the clocks of the calls that have ended since; waits for the device.
  Status RecordCalls();

 private:
  struct FreeDevice {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  struct FreeHost {
    void operator()(void* memory) const { cudaFreeHost(memory); }
  };
  using DeviceMemory = std::unique_ptr<void, FreeDevice>;

  VirtualRanks(CallName name, std::shared_ptr<const Program> program)
      : name_(std::move(name)), program_(std::move(program)) {}
  Status Allocate();

  const CallName name_;
  const std::shared_ptr<const Program> program_;
  std::mutex mutex_;
  Arguments arguments_ = {};
  DeviceMemory rank_tables_, ops_, ranks_, waits_, control_, clocks_;
  std::unique_ptr<Told[], FreeHost> told_;
  std::shared_ptr<SiteStats> stats_;
  uint64_t checked_ = 0;   // failures of calls up to this one were told
  uint64_t recorded_ = 0;  // clocks of calls up to this one were read
};

}  // namespace jaxcomm::fused

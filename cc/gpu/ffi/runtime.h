// State that the custom calls of the fused executor share: programs, statistics, the deadline, and all ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/default_deadline.h"
#include "cc/base/status.h"
#include "cc/executor/calls/call_site_stats.h"
#include "cc/gpu/executor/ranks.h"
#include "cc/program/registry.h"

namespace jaxcomm {

struct FusedRuntime {
  ProgramRegistry programs;
  CallSiteStats stats;
  std::atomic<double> deadline{kDefaultDeadlineS};
  std::atomic<int32_t> process{0};  // this process's number in its job

  // Calls Ranks::Make. All() returns the ranks that were made in this way and still exist.
  Result<std::shared_ptr<fused::Ranks>> Make(CallName name, std::shared_ptr<const Program> program,
                                             const std::vector<int>& devices);
  std::vector<std::shared_ptr<fused::Ranks>> All();

  // Starts a call on the stream's device. Returns the launch's error. If the launch succeeds, returns Check(), which
  // may be the error of an earlier call. Checks only after the launch, because an earlier failure must not keep this
  // device from a call that other devices launch.
  Status Run(fused::Ranks& ranks, uint32_t rank, const fused::Ranks::Call& call, cudaStream_t stream);

  // Returns the error of a failed call that was not reported before, or ok if there is no such error.
  Status Check();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<fused::Ranks>> all_;
};

// Never destroyed, because XLA's threads may use the runtime while static destructors run.
FusedRuntime& TheFusedRuntime();

}  // namespace jaxcomm

// Shared by the custom calls of the fused executor: programs, statistics, the deadline, and all ranks there are.
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
#include "cc/executor/call_site_stats.h"
#include "cc/gpu/executor/ranks.h"
#include "cc/program/registry.h"

namespace jaxcomm {

struct FusedRuntime {
  ProgramRegistry programs;
  CallSiteStats stats;
  std::atomic<double> deadline{kDefaultDeadlineS};
  std::atomic<int32_t> process{0};  // this one's number in its job

  // As Ranks::Make; the C functions find what is made here for as long as it lives.
  Result<std::shared_ptr<fused::Ranks>> Make(CallName name, std::shared_ptr<const Program> program,
                                             const std::vector<int>& devices);
  std::vector<std::shared_ptr<fused::Ranks>> All();

  // Starts a call on the stream's device. An error of this launch or, as all devices must launch alike, then of a call
  // that has failed and that no caller has had.
  Status Run(fused::Ranks& ranks, uint32_t rank, const fused::Ranks::Call& call, cudaStream_t stream);

  // The error of a call that has failed and that no caller has had.
  Status Check();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<fused::Ranks>> all_;
};

// Lives until the process ends: XLA's threads may still call when static destructors run.
FusedRuntime& TheFusedRuntime();

}  // namespace jaxcomm

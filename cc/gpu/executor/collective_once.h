// Makes once what the ranks of a process need together, and what all processes make together: the first rank that asks
// makes it for the others. Where that fails, the nth time that a rank asks is the process's nth try, however many of
// its ranks ask; so all processes try equally often, and none waits for a try that the others have behind them.
//
//   CollectiveOnce<std::shared_ptr<Ranks>> ranks_once;
//   Result<std::shared_ptr<Ranks>> ranks = ranks_once.Get(rank, [&] { return Ranks::Make(...); });
//
// Thread-safe: who asks meanwhile waits for what the first one makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::fused {

template <typename Made>
class CollectiveOnce {
 public:
  template <typename Make>
  Result<Made> Get(uint32_t rank, Make make) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t& failures = failures_[rank];
    if (failures == outcomes_.size()) outcomes_.push_back(make());
    const Result<Made>& outcome = outcomes_[failures];
    if (!outcome.ok()) ++failures;
    return outcome;
  }

 private:
  std::mutex mutex_;
  std::vector<Result<Made>> outcomes_;   // only the last may have succeeded
  std::map<uint32_t, size_t> failures_;  // that a rank was given
};

}  // namespace jaxcomm::fused

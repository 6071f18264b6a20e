// Runs collectives of the ranks of one process as their ops become possible.
//
//   LocalExecutor executor(&threads);
//   executor.Arrive({run_id, group}, site, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Arrive never blocks: a rank's arrival makes ops runnable, on the workers or, when the whole call is tiny, right
// there. Every callback runs exactly once: in Arrive for the arriving rank if its call is over by then, otherwise as
// CallThreads says. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <tuple>

#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/call.h"
#include "cc/executor/call_table.h"
#include "cc/executor/call_threads.h"
#include "cc/executor/timer.h"

namespace jaxcomm {

class LocalExecutor {
 public:
  // Ranks join one call when run, call site and group are the same.
  struct Key {
    int64_t run;
    int64_t group;
    Names names = nullptr;  // alike for all ranks of the group
  };

  explicit LocalExecutor(CallThreads* threads) : threads_(*threads) {}

  void Arrive(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t rank, Buffers buffers, Done done);

  // Ends the call of this key with an error, for the ranks that wait in it and for those that arrive later: `coming`
  // ranks together, fewer than the program has, at least one. No other may arrive.
  void Abort(const Key& key, const std::shared_ptr<LocalSite>& site, Status why, uint32_t coming);

  // Fails the calls that have waited for `deadline` seconds for a rank; returns whether others still wait.
  bool FailOverdue(Clock::time_point now, double deadline);

  // Frees what the site's failed calls keep for ranks that arrive late.
  void Forget(const LocalSite* site);

  // The number of calls that a rank has yet to join.
  size_t open_calls() const;

 private:
  using CallKey = std::tuple<int64_t, const LocalSite*, int64_t>;

  std::shared_ptr<Call> Join(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t ranks);
  void Advance(const std::shared_ptr<Call>& call, Progress progress);
  static void RunHere(const std::shared_ptr<Call>& call, Progress& progress);

  CallThreads& threads_;
  mutable std::mutex mutex_;
  CallTable<CallKey, Call> calls_;
};

}  // namespace jaxcomm

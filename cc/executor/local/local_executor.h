// Runs the collectives of the ranks of one process. Each op of a collective runs as soon as its ranks have arrived and
// the ops before it are done.
//
//   LocalExecutor executor(&threads);
//   executor.Arrive({run_id, group}, site, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Arrive never blocks. Ops that the arrival makes ready run on the workers, or in Arrive itself if the whole call is
// tiny. Every callback runs exactly once. If the arriving rank is done before Arrive returns, Arrive runs its callback;
// all other callbacks run on threads of CallThreads. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <tuple>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/calls/call_table.h"
#include "cc/executor/local/local_call.h"
#include "cc/executor/threads/call_threads.h"
#include "cc/executor/threads/timer.h"

namespace jaxcomm {

class LocalExecutor {
 public:
  // Ranks join the same call if their run, call site and group are the same.
  struct Key {
    int64_t run;
    int64_t group;
    Names names = nullptr;  // the same for all ranks of the group
  };

  explicit LocalExecutor(CallThreads* threads) : threads_(*threads) {}

  void Arrive(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t rank, Buffers buffers, Done done);

  // Fails the call of this key with the error `why`. `coming`: the number of ranks that wait in the call or arrive
  // later, at least 1 and less than the program's number of ranks. No other rank may arrive.
  void Abort(const Key& key, const std::shared_ptr<LocalSite>& site, Status why, uint32_t coming);

  // Fails the calls that have waited for a rank for `deadline` seconds. Returns whether some calls still wait.
  bool FailOverdue(Clock::time_point now, double deadline);

  // Drops the site's failed calls, which were kept so that late ranks get the error.
  void Forget(const LocalSite* site);

  // The number of calls that some rank has not joined yet.
  size_t open_calls() const;

 private:
  using CallKey = std::tuple<int64_t, const LocalSite*, int64_t>;

  std::shared_ptr<LocalCall> Join(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t ranks);
  void Advance(const std::shared_ptr<LocalCall>& call, Progress progress);
  static void RunHere(const std::shared_ptr<LocalCall>& call, Progress& progress);

  CallThreads& threads_;
  mutable std::mutex mutex_;
  CallTable<CallKey, LocalCall> calls_;
};

}  // namespace jaxcomm

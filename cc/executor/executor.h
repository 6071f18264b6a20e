// Runs the collectives of the process's ranks, those of ranks of this process alone and those between processes.
//
//   Executor executor(/*threads=*/2);
//   executor.local().Arrive({run_id, group}, site, rank, buffers, done);     // return at once
//   executor.messages().Arrive(message_site, run_id, rank, buffers, done);
//
// A call that is not complete at the deadline fails on every rank that waits, and on those that arrive later. Threads
// are made when the first rank arrives; where the system has none to give, that rank's callback gets an error.
#pragma once

#include <utility>

#include "cc/executor/call_site_stats.h"
#include "cc/executor/call_threads.h"
#include "cc/executor/local_executor.h"
#include "cc/executor/message_executor.h"

namespace jaxcomm {

class Executor {
 public:
  explicit Executor(unsigned num_threads)
      : local_(&threads_), messages_(&threads_), threads_(num_threads, [this](Clock::time_point now, double deadline) {
          const bool waits = local_.FailOverdue(now, deadline);
          return messages_.FailOverdue(now, deadline) || waits;
        }) {}

  LocalExecutor& local() { return local_; }
  MessageExecutor& messages() { return messages_; }
  CallSiteStats& stats() { return stats_; }

  void SetDeadline(double seconds) { threads_.SetDeadline(seconds); }
  // Calls back after the delay.
  void Delay(Clock::duration delay, Done done) {
    if (!threads_.Start()) return done(CallThreads::NoThread("delay"));
    threads_.timer().After(delay, [this, done = std::move(done)] { threads_.CallBack("delay", {0, done, Status()}); });
  }

 private:
  CallSiteStats stats_;
  LocalExecutor local_;
  MessageExecutor messages_;
  CallThreads threads_;  // destroyed first
};

}  // namespace jaxcomm

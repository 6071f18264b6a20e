// Runs the collectives of the process's ranks, both within this process and between processes.
//
//   Executor executor(/*threads=*/2);
//   executor.local().Arrive({run_id, group}, site, rank, buffers, done);     // both return at once
//   executor.messages().Arrive(message_site, run_id, rank, buffers, done);
//
// A call that is incomplete at the deadline fails on every waiting rank, and on ranks that arrive later. Threads start
// when the first rank arrives. If the system cannot start the threads, the arriving rank's callback gets an error.
#pragma once

#include <utility>

#include "cc/executor/calls/call_site_stats.h"
#include "cc/executor/local/local_executor.h"
#include "cc/executor/messages/message_executor.h"
#include "cc/executor/threads/call_threads.h"

namespace jaxcomm {

class Executor final : public Executors {
 public:
  explicit Executor(unsigned num_threads)
      : local_(&threads_), messages_(&threads_), threads_(num_threads, [this](Clock::time_point now, double deadline) {
          const bool waits = local_.FailOverdue(now, deadline);
          return messages_.FailOverdue(now, deadline) || waits;
        }) {}

  LocalExecutor& local() override { return local_; }
  MessageExecutor& messages() override { return messages_; }
  CallSiteStats& stats() { return stats_; }

  void SetDeadline(double seconds) { threads_.SetDeadline(seconds); }
  void Delay(Clock::duration delay, Done done) {
    if (!threads_.Start()) return done(CallThreads::NoThread("delay"));
    threads_.timer().After(delay, [this, done = std::move(done)] { threads_.CallBack("delay", {0, done, Status()}); });
  }

 private:
  CallSiteStats stats_;
  LocalExecutor local_;
  MessageExecutor messages_;
  CallThreads threads_;  // destroyed first, because its threads use the members above
};

}  // namespace jaxcomm

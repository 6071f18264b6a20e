// The threads on which calls run and end: workers, one for each callback that may block, and a timer.
//
//   CallThreads threads(/*workers=*/2, [this](Clock::time_point now, double deadline) { return FailOverdue(…); });
//   if (!threads.Start()) return done(CallThreads::NoThread("psum over 'data'"));
//   threads.workers().Submit(std::move(jobs));
//   threads.CallBack("psum over 'data'", {rank, done, status});
//   threads.WatchDeadlines();   // after a call has begun
//
// Thread-safe. The destructor ends the threads.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "cc/base/default_deadline.h"
#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/thread_cache.h"
#include "cc/executor/timer.h"
#include "cc/executor/worker_pool.h"

namespace jaxcomm {

class CallThreads {
 public:
  // Fails the calls that have waited for `deadline` seconds; returns whether others still wait.
  using FailOverdue = std::function<bool(Clock::time_point now, double deadline)>;

  CallThreads(unsigned workers, FailOverdue fail_overdue)
      : num_workers_(workers), fail_overdue_(std::move(fail_overdue)) {}

  // Makes the threads, unless they have been made; false: the system has none to give.
  bool Start();
  // The error of a rank that comes then; `call` names its call.
  static Status NoThread(const std::string& call);

  WorkerPool& workers() { return workers_; }
  Timer& timer() { return timer_; }

  // Runs a completion of this call on a thread that no other callback shares, because it may go on to run the rest of a
  // device's program and block there. Where the system has no thread to give it waits for one, at most until the
  // deadline: on a thread of another callback, the program with which it goes on might wait for the program of that
  // callback. The error that it gets then ends its program.
  void CallBack(const std::string& call, Completion completion);

  // Has overdue calls failed from now on, until no call waits. Where it throws, for lack of memory, the next one does.
  void WatchDeadlines();
  void SetDeadline(double seconds) { deadline_.store(seconds); }

 private:
  bool Run(const Completion& completion);
  void Watch();
  Clock::duration WatchPeriod() const;

  const unsigned num_workers_;
  const FailOverdue fail_overdue_;
  std::atomic<double> deadline_{kDefaultDeadlineS};
  std::mutex watch_mutex_;
  std::atomic<bool> watching_{false};
  std::mutex starting_;
  bool started_ = false;
  // No thread may outlive what it uses, and the last of these is destroyed first: workers use the timer, for callbacks
  // that lack a thread, and the timer starts the threads.
  ThreadCache threads_;
  Timer timer_;
  WorkerPool workers_;
};

}  // namespace jaxcomm

// The threads on which calls run and end: workers, a timer, and a thread for each callback that may block.
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
#include "cc/executor/threads/completion.h"
#include "cc/executor/threads/thread_cache.h"
#include "cc/executor/threads/timer.h"
#include "cc/executor/threads/worker_pool.h"

namespace jaxcomm {

class CallThreads {
 public:
  // Fails the calls that have waited for `deadline` seconds. Returns whether some calls still wait.
  using FailOverdue = std::function<bool(Clock::time_point now, double deadline)>;

  CallThreads(unsigned workers, FailOverdue fail_overdue)
      : num_workers_(workers), fail_overdue_(std::move(fail_overdue)) {}

  // Starts the threads, if they are not running. Returns false if the system cannot start them.
  bool Start();
  // The error of a rank that arrives when no thread can be started. `call` names the rank's call.
  static Status NoThread(const std::string& call);

  WorkerPool& workers() { return workers_; }
  Timer& timer() { return timer_; }

  // Runs the completion's callback on a thread that no other callback shares. A callback may run the rest of a device's
  // program and block. If two callbacks shared a thread, the second callback would wait for the first callback's
  // program. If no thread can be started, tries again until the deadline. The callback then gets an error, which ends
  // the device's program.
  void CallBack(const std::string& call, Completion completion);

  // Starts the watch, which fails overdue calls until no call waits. If WatchDeadlines throws for lack of memory, the
  // next WatchDeadlines starts the watch. After this process was stopped (SIGSTOP), the watch first gives the transport
  // time to receive the messages that arrived during the stop.
  void WatchDeadlines();
  void SetDeadline(double seconds) { deadline_.store(seconds); }
  double deadline() const { return deadline_.load(); }

 private:
  bool Run(const Completion& completion);
  void Watch();
  bool PutOff(Clock::time_point now);
  Clock::duration WatchPeriod() const;

  const unsigned num_workers_;
  const FailOverdue fail_overdue_;
  std::atomic<double> deadline_{kDefaultDeadlineS};
  std::mutex watch_mutex_;
  std::atomic<bool> watching_{false};
  Clock::time_point due_;  // when the watch runs next; guarded by watch_mutex_
  int put_off_ = 0;        // how often in a row the watch was put off; used by the timer's thread only
  std::mutex starting_;
  bool started_ = false;
  // Members are destroyed from the last to the first, so that no thread outlives the members that it uses. Workers use
  // the timer for callbacks that lack a thread. The timer starts threads of threads_.
  ThreadCache threads_;
  Timer timer_;
  WorkerPool workers_;
};

}  // namespace jaxcomm

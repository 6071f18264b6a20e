#include "cc/executor/threads/call_threads.h"

#include <algorithm>
#include <chrono>

namespace jaxcomm {
namespace {

// The time after which a callback that lacks a thread asks for a thread again.
constexpr std::chrono::milliseconds kRetry{10};

// If the deadline watch runs later than planned by more than this time, the process counts as having been stopped (by
// SIGSTOP, or with its virtual machine).
constexpr std::chrono::milliseconds kStopped{100};
// After a stop, the watch is postponed by this time, so that the transport's thread first receives the messages that
// arrived during the stop.
constexpr std::chrono::milliseconds kDrain{500};
// The watch is postponed at most this number of times in a row. On a busy machine every watch may be late, but overdue
// calls must still fail.
constexpr int kMostPutOff = 4;

}  // namespace

bool CallThreads::Start() {
  std::lock_guard<std::mutex> lock(starting_);
  started_ = started_ || (timer_.Start() && workers_.Start(num_workers_));
  return started_;
}

Status CallThreads::NoThread(const std::string& call) {
  return Status(Code::kInternal, call +
                                     ": the system lets this process start no thread.\n  Cure: raise the limit on "
                                     "threads (`ulimit -u`, a container's pids limit) or on memory (`ulimit -v`).");
}

void CallThreads::CallBack(const std::string& call, Completion completion) {
  if (Run(completion)) return;
  timer_.After(kRetry, [this, call, completion = std::move(completion), since = Clock::now()] {
    if (Run(completion)) return;
    if (Seconds(Clock::now() - since) < deadline_.load()) return timer_.RunAgain(kRetry);
    // Runs the callback on the timer's thread. The callback does not block, because the error ends the device's
    // program.
    completion.done(completion.status.ok() ? NoThread(call) : completion.status);
  });
}

// Returns false if no thread can be started.
bool CallThreads::Run(const Completion& completion) {
  return threads_.Run([done = completion.done, status = completion.status] { done(status); });
}

void CallThreads::WatchDeadlines() {
  if (watching_) return;
  std::lock_guard<std::mutex> lock(watch_mutex_);
  if (watching_) return;
  due_ = Clock::now() + WatchPeriod();
  timer_.After(WatchPeriod(), [this] { Watch(); });
  watching_ = true;
}

Clock::duration CallThreads::WatchPeriod() const {
  const std::chrono::duration<double> period(std::clamp(deadline_.load() / 20, 0.01, 0.25));
  return std::chrono::duration_cast<Clock::duration>(period);
}

void CallThreads::Watch() {
  const Clock::time_point now = Clock::now();  // read only once, because the process may be stopped at any later line
  if (PutOff(now)) return;
  watching_ = false;  // set before the check, so that a call that begins meanwhile restarts the watch
  if (!fail_overdue_(now, deadline_.load())) return;
  std::lock_guard<std::mutex> lock(watch_mutex_);
  if (watching_) return;
  due_ = Clock::now() + WatchPeriod();
  timer_.RunAgain(WatchPeriod());
  watching_ = true;
}

bool CallThreads::PutOff(Clock::time_point now) {
  std::lock_guard<std::mutex> lock(watch_mutex_);
  const bool was_stopped = now - due_ > kStopped;
  put_off_ = was_stopped && put_off_ < kMostPutOff ? put_off_ + 1 : 0;
  if (put_off_ == 0) return false;
  due_ = now + kDrain;
  timer_.RunAgain(kDrain);
  return true;
}

}  // namespace jaxcomm

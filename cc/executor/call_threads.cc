#include "cc/executor/call_threads.h"

#include <algorithm>
#include <chrono>

namespace jaxcomm {
namespace {

// The time after which a callback that lacks a thread asks for one again.
constexpr std::chrono::milliseconds kRetry{10};

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
  RunOrRetry(call, completion.done, completion.status, Clock::now());
}

void CallThreads::RunOrRetry(const std::string& call, const Done& done, const Status& status, Clock::time_point since) {
  if (threads_.Run([done, status] { done(status); })) return;
  if (Seconds(Clock::now() - since) >= deadline_.load()) {
    done(status.ok() ? NoThread(call) : status);  // on the timer's thread, which a program's end does not hold up
  } else {
    timer_.After(kRetry, [=] { RunOrRetry(call, done, status, since); });
  }
}

void CallThreads::WatchDeadlines() {
  if (watching_.exchange(true)) return;
  const std::chrono::duration<double> period(std::clamp(deadline_.load() / 20, 0.01, 0.25));
  timer_.After(std::chrono::duration_cast<Clock::duration>(period), [this] { Watch(); });
}

void CallThreads::Watch() {
  watching_ = false;  // first: a call that begins meanwhile has the watch go on
  if (fail_overdue_(Clock::now(), deadline_.load())) WatchDeadlines();
}

}  // namespace jaxcomm

#include "cc/executor/call_threads.h"

#include <algorithm>
#include <chrono>
#include <new>

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
  if (Run(completion)) return;
  timer_.After(kRetry, [this, call, completion = std::move(completion), since = Clock::now()] {
    if (Run(completion)) return;
    if (Seconds(Clock::now() - since) < deadline_.load()) return timer_.RunAgain(kRetry);
    // On the timer's thread, which a program's end does not hold up.
    completion.done(completion.status.ok() ? NoThread(call) : completion.status);
  });
}

// False: there is no thread, or no memory for its work.
bool CallThreads::Run(const Completion& completion) try {
  return threads_.Run([done = completion.done, status = completion.status] { done(status); });
} catch (const std::bad_alloc&) {
  return false;
}

void CallThreads::WatchDeadlines() {
  if (watching_) return;
  std::lock_guard<std::mutex> lock(watch_mutex_);
  if (watching_) return;
  timer_.After(WatchPeriod(), [this] { Watch(); });
  watching_ = true;
}

Clock::duration CallThreads::WatchPeriod() const {
  const std::chrono::duration<double> period(std::clamp(deadline_.load() / 20, 0.01, 0.25));
  return std::chrono::duration_cast<Clock::duration>(period);
}

void CallThreads::Watch() {
  watching_ = false;  // first: a call that begins meanwhile has the watch go on
  if (!fail_overdue_(Clock::now(), deadline_.load())) return;
  std::lock_guard<std::mutex> lock(watch_mutex_);
  if (watching_) return;
  timer_.RunAgain(WatchPeriod());
  watching_ = true;
}

}  // namespace jaxcomm

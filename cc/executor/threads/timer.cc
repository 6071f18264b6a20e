#include "cc/executor/threads/timer.h"

#include <optional>
#include <utility>

#include "cc/base/thread.h"

namespace jaxcomm {

Timer::~Timer() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool Timer::Start() {
  if (thread_.joinable()) return true;
  std::optional<std::thread> thread = StartThread([this] { Work(); });
  if (!thread) return false;
  thread_ = std::move(*thread);
  return true;
}

void Timer::After(Clock::duration delay, std::function<void()> job) {
  bool is_next;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = jobs_.emplace(Clock::now() + delay, std::move(job));
    is_next = at == jobs_.begin();
  }
  if (is_next) wake_.notify_one();
}

void Timer::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const Clock::time_point next = jobs_.begin()->first;
    if (Clock::now() < next) {
      wake_.wait_until(lock, next);
      continue;
    }
    auto job = jobs_.extract(jobs_.begin());
    lock.unlock();
    again_.reset();
    job.mapped()();
    if (again_) {
      job.key() = Clock::now() + *again_;
    } else {
      job = {};
    }
    lock.lock();
    if (job) jobs_.insert(std::move(job));
  }
}

}  // namespace jaxcomm

#include "cc/executor/timer.h"

#include <utility>

namespace jaxcomm {

Timer::Timer() : thread_([this] { Work(); }) {}

Timer::~Timer() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
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
    std::function<void()> job = std::move(jobs_.begin()->second);
    jobs_.erase(jobs_.begin());
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace jaxcomm

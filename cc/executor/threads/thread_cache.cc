#include "cc/executor/threads/thread_cache.h"

#include <optional>
#include <utility>

#include "cc/base/thread.h"

namespace jaxcomm {

ThreadCache::~ThreadCache() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadCache::Run(std::function<void()>&& job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (jobs_.size() == idle_) {
      // Reserves space before the thread starts. If push_back threw after the start, the thread's destructor would end
      // the process.
      threads_.reserve(threads_.size() + 1);
      std::optional<std::thread> thread = StartThread([this] { Work(); });
      if (!thread) return false;
      threads_.push_back(std::move(*thread));
      ++idle_;  // the new thread is about to wait for jobs
    }
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
  return true;
}

void ThreadCache::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    --idle_;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    ++idle_;
  }
}

}  // namespace jaxcomm

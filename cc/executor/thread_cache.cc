#include "cc/executor/thread_cache.h"

#include <utility>

namespace jaxcomm {

ThreadCache::~ThreadCache() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadCache::Run(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    if (jobs_.size() > idle_) {
      threads_.emplace_back([this] { Work(); });
      ++idle_;  // it is on its way to the queue
      return;
    }
  }
  wake_.notify_one();
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

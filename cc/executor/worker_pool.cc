#include "cc/executor/worker_pool.h"

#include <optional>
#include <utility>

#include "cc/base/thread.h"

namespace jaxcomm {

WorkerPool::~WorkerPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Start(unsigned num_threads) {
  while (threads_.size() < num_threads) {
    std::optional<std::thread> thread = StartThread([this] { Work(); });
    if (!thread) break;
    threads_.push_back(std::move(*thread));
  }
  return !threads_.empty();
}

void WorkerPool::Submit(std::vector<std::function<void()>> jobs) {
  const size_t count = jobs.size();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& job : jobs) jobs_.push_back(std::move(job));
  }
  for (size_t i = 0; i < count && i < threads_.size(); ++i) wake_.notify_one();
}

void WorkerPool::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace jaxcomm

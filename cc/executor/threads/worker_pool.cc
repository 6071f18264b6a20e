#include "cc/executor/threads/worker_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cc/base/thread.h"

namespace jaxcomm {

unsigned WorkerPool::ThreadsOfProcess() { return std::max(1u, std::thread::hardware_concurrency()); }

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
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto& job : jobs) jobs_.push_back(std::move(job));
  WakeOne(lock);
}

// Wakes one thread. Each thread that wakes up wakes the next thread, so no thread spends time on several wake-ups.
void WorkerPool::WakeOne(std::unique_lock<std::mutex>& lock) {
  if (idle_ == 0 || jobs_.size() <= waking_) return;
  --idle_;
  ++waking_;
  lock.unlock();
  wake_.notify_one();
  lock.lock();
}

void WorkerPool::Help() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!jobs_.empty() && waking_ > 0) RunOne(lock);
}

void WorkerPool::RunOne(std::unique_lock<std::mutex>& lock) {
  std::function<void()> job = std::move(jobs_.front());
  jobs_.pop_front();
  lock.unlock();
  [&]() noexcept {  // no exception of a job may reach the caller of Help
    job();
    job = nullptr;
  }();
  lock.lock();
}

void WorkerPool::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    while (!jobs_.empty()) RunOne(lock);
    if (stopping_) return;
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || waking_ > 0; });
    WakeOne(lock);  // must precede --waking_, or one job would wake two threads
    if (waking_ > 0) --waking_;
  }
}

}  // namespace jaxcomm

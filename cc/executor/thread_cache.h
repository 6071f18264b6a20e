// Runs jobs that may block, each on a thread that no other job shares while it runs.
//
//   ThreadCache threads;
//   if (!threads.Run([promise] { promise.SetAvailable(); })) ...   // returns at once
//
// A finished thread waits for the next job; when none is idle a new one starts, so a job never queues behind a blocked
// one. Where none can be made the job is not taken. The destructor joins, so every job must end some day.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxcomm {

class ThreadCache {
 public:
  ThreadCache() = default;
  ~ThreadCache();

  // False: no thread is idle and no other can be made; the job is the caller's still.
  bool Run(std::function<void()>&& job);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxcomm

// Runs jobs that may block. While a job runs, no other job uses the job's thread.
//
//   ThreadCache threads;
//   if (!threads.Run([promise] { promise.SetAvailable(); })) ...   // returns at once
//
// A thread that has finished its job waits for the next job. If no thread is idle, a new thread starts, so a job never
// queues behind a blocked job. If no thread can be started, Run does not take the job. The destructor joins the
// threads, so every job must end.
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

  // Returns false if no thread is idle and no new thread can be started. The caller then keeps the job.
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

// A fixed number of threads that run short jobs in the order they came.
//
//   WorkerPool pool;
//   if (!pool.Start(2)) ...         // not one thread can be made
//   pool.Submit(std::move(jobs));   // returns at once
//
// Jobs must not wait for anything. The destructor runs what is queued, then joins.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxcomm {

class WorkerPool {
 public:
  ~WorkerPool();

  // Makes as many threads as there can be; false: none. Call it until it succeeds, before the first Submit.
  bool Start(unsigned num_threads);
  void Submit(std::vector<std::function<void()>> jobs);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxcomm

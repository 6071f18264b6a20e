// A fixed number of threads that run short jobs in the order they came.
//
//   WorkerPool pool;
//   if (!pool.Start(2)) ...         // not one thread can be made
//   pool.Submit(std::move(jobs));   // returns at once
//   pool.Help();                    // runs jobs here until the threads that Submit has woken have begun
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
  // The number of worker threads of a process: one for each processor.
  static unsigned ThreadsOfProcess();

  ~WorkerPool();

  // Makes as many threads as there can be; false: none. Call it until it succeeds, before the first Submit.
  bool Start(unsigned num_threads);
  void Submit(std::vector<std::function<void()>> jobs);
  void Help();

 private:
  void Work();
  void WakeOne(std::unique_lock<std::mutex>& lock);
  void RunOne(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  size_t waking_ = 0;  // threads that have been woken and do not run yet
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxcomm

// A fixed number of threads that run short jobs in the order of submission.
//
//   WorkerPool pool;
//   if (!pool.Start(2)) ...         // no thread can be started
//   pool.Submit(std::move(jobs));   // returns at once
//   pool.Help();                    // runs jobs on this thread until the threads woken by Submit are running
//
// Jobs must not wait for anything. The destructor runs all queued jobs, then joins the threads.
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

  // Starts up to `num_threads` threads. Returns false if no thread runs. Before the first Submit, the caller calls
  // Start until it succeeds.
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
  size_t waking_ = 0;  // the number of threads that have been woken and do not run yet
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxcomm

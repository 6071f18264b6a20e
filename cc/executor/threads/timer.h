// Runs jobs later, on one thread.
//
//   Timer timer;
//   if (!timer.Start()) ...                                   // the timer's thread cannot be started
//   timer.After(std::chrono::milliseconds(20), [] { ... });   // returns at once
//   timer.RunAgain(std::chrono::milliseconds(20));            // in a job: runs this job again, without allocating
//
// Jobs must be short and must not wait. The destructor drops jobs that are not due yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace jaxcomm {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

class Timer {
 public:
  ~Timer();

  // Returns false if the thread cannot be started. The caller calls Start until it succeeds.
  bool Start();
  void After(Clock::duration delay, std::function<void()> job);
  void RunAgain(Clock::duration delay) { again_ = delay; }

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<Clock::time_point, std::function<void()>> jobs_;
  std::optional<Clock::duration> again_;  // the delay of RunAgain in the running job; used by the timer's thread only
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace jaxcomm

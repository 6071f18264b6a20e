// Polls for an event in another thread, and yields the processor between polls. Polls for about 50 us, the time that
// falling asleep and waking up would take.
//
//   yielding.Until([&] { return ready(); });   // may return before ready() is true: the caller then blocks
//
// A thread that computes keeps a yielded processor for milliseconds, but a thread that wakes from sleep preempts such a
// thread. So after a yield of more than 1 ms, Until returns at once for 250 ms, and the caller sleeps.
#pragma once

#include <sched.h>

#include <chrono>
#include <utility>

namespace jaxcomm {

class Yielding {
 public:
  template <typename Ready, typename Yield = int (*)()>
  void Until(const Ready& ready, const Yield& yield = sched_yield) {
    Clock::time_point now = Clock::now();
    if (now < sleeps_until_) return;
    for (const Clock::time_point end = now + kLimit; now < end && !ready();) {
      yield();
      const Clock::time_point before = std::exchange(now, Clock::now());
      if (now - before > kLong) sleeps_until_ = now + kSleeps;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kLimit{50};
  static constexpr std::chrono::milliseconds kLong{1};
  static constexpr std::chrono::milliseconds kSleeps{250};

  Clock::time_point sleeps_until_;
};

}  // namespace jaxcomm

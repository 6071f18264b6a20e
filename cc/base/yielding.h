// Waits for another thread without sleeping. The wait takes at most about the time of falling asleep and waking up.
//
//   yielding.Until([&] { return ready(); });   // may return before ready() is true: the caller then blocks
//
// Other threads run on this processor during the wait. After a yield, a thread that computes keeps the processor for
// milliseconds, but a sleeping thread that wakes up gets the processor from it. So after a long yield, Until returns at
// once for some time, and its caller sleeps.
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

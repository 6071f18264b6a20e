// Waiting for another thread without falling asleep, for about as long as that and being woken take.
//
//   yielding.Until([&] { return ready(); });   // may return before: block then
//
// Other threads run on this processor meanwhile. One that computes would do so for milliseconds, where it would
// be interrupted for a thread that is woken; after a yield that took long, the next waits are slept for a while.
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

// Polls for an event that another thread causes, and yields the processor between polls. Stops polling after about 100
// us, which is somewhat longer than falling asleep and waking up would take.
//
//   std::atomic<int64_t> rests_until{0};                // the same for all threads that may poll
//   YieldUntil([&] { return ready(); }, rests_until);
//   if (!ready()) ...                                   // sleep until the event
//
// If a computing thread gets the yielded processor, the polling thread gets it back only after milliseconds. If the
// polling thread slept instead, it would preempt the computing thread on waking up. Therefore, after a yield that took
// more than 400 us, no thread polls for 25 times as long as that yield took. During this rest, YieldUntil returns at
// once, so that its callers sleep.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace jaxcomm {

// Returns true if this call has begun a rest. `rests_until`: the end of the rest, in nanoseconds of the steady clock.
template <typename Ready, typename Yield = int (*)()>
bool YieldUntil(const Ready& ready, std::atomic<int64_t>& rests_until, const Yield& yield = sched_yield) {
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::nanoseconds;
  constexpr std::chrono::microseconds kLimit{100}, kSlow{400};
  Clock::time_point now = Clock::now();
  if (now.time_since_epoch() < Nanoseconds(rests_until.load(std::memory_order_relaxed))) return false;
  for (const Clock::time_point end = now + kLimit; now < end && !ready();) {
    yield();
    const Clock::time_point before = std::exchange(now, Clock::now());
    if (now - before <= kSlow) continue;
    const Nanoseconds until = now.time_since_epoch() + 25 * (now - before);
    rests_until.store(until.count(), std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace jaxcomm

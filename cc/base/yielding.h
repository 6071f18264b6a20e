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
// once, so that its callers sleep. No rest begins if the thread that got the processor is one for which the caller
// waits, because the event could not have come without that thread.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

namespace jaxcomm {

constexpr std::chrono::microseconds kSlowYield{400};

// Returns true if this call has begun a rest. `rests_until`: the end of the rest, in nanoseconds of the steady clock.
// `was_awaited(end)`: whether a thread for which the caller waits had this processor until about the time `end`.
template <typename Ready, typename WasAwaited = bool (*)(std::chrono::steady_clock::time_point),
          typename Yield = int (*)()>
bool YieldUntil(
    const Ready& ready, std::atomic<int64_t>& rests_until,
    const WasAwaited& was_awaited = [](std::chrono::steady_clock::time_point) { return false; },
    const Yield& yield = sched_yield) {
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::nanoseconds;
  constexpr std::chrono::microseconds kLimit{100};
  Clock::time_point now = Clock::now();
  if (now.time_since_epoch() < Nanoseconds(rests_until.load(std::memory_order_relaxed))) return false;
  for (const Clock::time_point end = now + kLimit; now < end && !ready();) {
    yield();
    const Clock::time_point before = std::exchange(now, Clock::now());
    if (now - before <= kSlowYield || was_awaited(now)) continue;
    const Nanoseconds until = now.time_since_epoch() + 25 * (now - before);
    rests_until.store(until.count(), std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace jaxcomm

// A state in memory that several processes change by compare-and-swap. Threads sleep until the state changes.
//
//   const uint64_t now = SleepUntil(word, kSleeps, end, [](uint64_t now) { return IsOver(now); });
//   if (word.exchange(after) & kSleeps) Wake(word);   // after every change for which a thread may wait
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace jaxcomm::shm {

using StateWord = std::atomic<uint64_t>;

// Wakes all threads that sleep on the word.
void Wake(StateWord& word);

// Sleeps until another thread wakes this one, at most for `limit`. Returns at once if the low half of the word differs
// from the low half of `expected`.
void Sleep(StateWord& word, uint64_t expected, std::chrono::nanoseconds limit);

// Sleeps until `ready(state)` holds, but not longer than until `end`. Returns the last state. `sleeps`: the bit in the
// low half of the word that says that a thread sleeps.
template <typename Ready>
uint64_t SleepUntil(StateWord& word, uint64_t sleeps, std::chrono::steady_clock::time_point end, const Ready& ready) {
  for (uint64_t now = word.load();;) {
    const auto left = end - std::chrono::steady_clock::now();
    if (ready(now) || left <= left.zero()) return now;
    if (!(now & sleeps) && !word.compare_exchange_weak(now, now | sleeps)) continue;
    Sleep(word, now | sleeps, left);
    now = word.load();
  }
}

}  // namespace jaxcomm::shm

// A word that the threads of other processes ring, and on which the threads of one process sleep: its progress thread,
// and one that helps it for a while.
//
//   publish(...); Ring(word);         // any thread; RingSoftly: a dozing poller wakes later
//   Listen(word); look();             // one thread at a time: sees all that was published before a ring
//   if (Rest(word, kAsleep)) Sleep(word, kAsleep, milliseconds);   // kDozing, kHelping: likewise
//
// Ringing costs a system call only if a thread sleeps there.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace jaxcomm::shm {

enum Doorbell : uint32_t {
  kAwake,
  kRung,
  kAsleep,   // the progress thread sleeps
  kDozing,   // it sleeps, and nothing here waits for a message
  kHelping,  // the helper sleeps, as the progress thread may
};

// The futex bit of the thread that sleeps in this state.
inline uint32_t Sleeper(uint32_t state) { return state == kHelping ? 2 : 1; }

inline void WakeSleeper(std::atomic<uint32_t>& word, uint32_t state) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, 1, nullptr, nullptr, Sleeper(state));
}

// Returns false if the wake-up is deferred, as the sleeper dozes.
inline bool RingSoftly(std::atomic<uint32_t>& word) {
  const uint32_t before = word.exchange(kRung);
  if (before == kAsleep || before == kHelping) WakeSleeper(word, before);
  return before != kDozing && before != kRung;
}

// A dozing poller may hold a deferred wake-up.
inline void Ring(std::atomic<uint32_t>& word) {
  const uint32_t before = word.exchange(kRung);
  if (before != kAwake) WakeSleeper(word, before);
}

inline void Listen(std::atomic<uint32_t>& word) { word.exchange(kAwake); }

// False: the word has been rung.
inline bool Rest(std::atomic<uint32_t>& word, Doorbell state) {
  uint32_t awake = kAwake;
  return word.compare_exchange_strong(awake, state);
}

// Ends at once if the state has changed.
inline void Sleep(std::atomic<uint32_t>& word, Doorbell state, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now().time_since_epoch() + limit;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(end);
  const timespec time = {seconds.count(), std::chrono::duration_cast<std::chrono::nanoseconds>(end - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, state, &time, nullptr, Sleeper(state));
}

}  // namespace jaxcomm::shm

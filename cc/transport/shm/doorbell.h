// The doorbell of a process: a word that other processes ring to wake the process. Two threads of the process sleep on
// the word: the progress thread and a helper, which is a thread in Transport::Help.
//
//   publish(...); Ring(word);         // on any thread; RingSoftly does not wake a dozing thread
//   Listen(word); look();             // one thread at a time; look() sees everything published before a ring
//   if (Rest(word, kAsleep)) Sleep(word, kAsleep, milliseconds);   // or with kDozing or kHelping
//
// Ringing costs a system call only if a thread sleeps on the word.
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
  kDozing,   // the progress thread sleeps, and no call of the process waits for a message
  kHelping,  // the helper sleeps; the progress thread may also sleep
};

// Returns the futex bit of the thread that sleeps in this state.
inline uint32_t Sleeper(uint32_t state) { return state == kHelping ? 2 : 1; }

inline void WakeSleeper(std::atomic<uint32_t>& word, uint32_t state) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, 1, nullptr, nullptr, Sleeper(state));
}

// Rings the word, but does not wake a dozing thread. Returns false if a wake-up may have been deferred, because a
// thread dozes or because the word was rung before.
inline bool RingSoftly(std::atomic<uint32_t>& word) {
  const uint32_t before = word.exchange(kRung);
  if (before == kAsleep || before == kHelping) WakeSleeper(word, before);
  return before != kDozing && before != kRung;
}

// Wakes a thread even if the word was rung before, because RingSoftly may have deferred that wake-up.
inline void Ring(std::atomic<uint32_t>& word) {
  const uint32_t before = word.exchange(kRung);
  if (before != kAwake) WakeSleeper(word, before);
}

inline void Listen(std::atomic<uint32_t>& word) { word.exchange(kAwake); }

// Announces that a thread will sleep. Returns false if the word has been rung.
inline bool Rest(std::atomic<uint32_t>& word, Doorbell state) {
  uint32_t awake = kAwake;
  return word.compare_exchange_strong(awake, state);
}

// Sleeps until another thread rings or the limit has passed. Returns at once if the word no longer equals `state`.
inline void Sleep(std::atomic<uint32_t>& word, Doorbell state, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now().time_since_epoch() + limit;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(end);
  const timespec time = {seconds.count(), std::chrono::duration_cast<std::chrono::nanoseconds>(end - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, state, &time, nullptr, Sleeper(state));
}

}  // namespace jaxcomm::shm

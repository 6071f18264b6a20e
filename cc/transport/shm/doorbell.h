// A word that the threads of other processes ring, and on which one thread sleeps.
//
//   publish(...); Ring(word);                                       // any thread
//   for (;;) { Listen(word); look(); Sleep(word, milliseconds); }   // one thread: sees all that was published before a
//   ring
//
// Ringing costs a system call only where the other sleeps.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace jaxcomm::shm {

enum Doorbell : uint32_t { kAwake = 0, kRung = 1, kAsleep = 2 };

inline void Ring(std::atomic<uint32_t>& word) {
  if (word.exchange(kRung) == kAsleep) syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

inline void Listen(std::atomic<uint32_t>& word) { word.exchange(kAwake); }

inline void Sleep(std::atomic<uint32_t>& word, std::chrono::milliseconds limit) {
  uint32_t awake = kAwake;
  if (!word.compare_exchange_strong(awake, kAsleep)) return;
  const timespec time = {limit.count() / 1000, limit.count() % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, kAsleep, &time, nullptr, 0);
}

}  // namespace jaxcomm::shm

#include "cc/transport/shm/state_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace jaxcomm::shm {
namespace {

// Returns the futex word of a state: its low half.
uint32_t* FutexOf(StateWord& word) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<uint32_t*>(&word);
}

}  // namespace

void Wake(StateWord& word) { syscall(SYS_futex, FutexOf(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Sleep(StateWord& word, uint64_t expected, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time = {seconds.count(), (limit - seconds).count()};
  syscall(SYS_futex, FutexOf(word), FUTEX_WAIT, static_cast<uint32_t>(expected), &time, nullptr, 0);
}

}  // namespace jaxcomm::shm

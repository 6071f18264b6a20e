#include "cc/transport/shm/exchange_round.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace jaxcomm::shm {
namespace {

// Returns the futex word of a state: the low half of the state, which holds everything except the tag.
uint32_t* Word(ExchangeRound::State& state) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<uint32_t*>(&state);
}

}  // namespace

void ExchangeRound::Wake() { syscall(SYS_futex, Word(state_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void ExchangeRound::Sleep(uint64_t expected, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time = {seconds.count(), (limit - seconds).count()};
  syscall(SYS_futex, Word(state_), FUTEX_WAIT, static_cast<uint32_t>(expected), &time, nullptr, 0);
}

bool ExchangeRound::Enter(bool takes) {
  uint64_t before = state_.load(), after;
  do {
    const bool is_ours = (before & kTag) == tag_;
    if (is_ours ? (before & kClosed) != 0 || Entered(before) == ranks_ : !IsFree(before)) return false;
    after = (is_ours ? before : tag_) + kEntered + (takes ? kTaken : 0);
  } while (!state_.compare_exchange_weak(before, after));
  if (Entered(after) == ranks_ && after & kSleeps) Wake();
  return true;
}

void ExchangeRound::Decline() {
  uint64_t before = state_.load();
  do {
    if ((before & kTag) == tag_ ? (before & kClosed) != 0 : !IsFree(before)) return;
  } while (!state_.compare_exchange_weak(before, (before & kTag) == tag_ ? before | kClosed : tag_ | kClosed));
  if (before & kSleeps) Wake();
}

bool ExchangeRound::Take() {
  uint64_t before = state_.load();
  do {
    if (!IsOpen(before)) return false;
  } while (!state_.compare_exchange_weak(before, before + kTaken));
  if (Taken(before) + 1 == ranks_ && before & kSleeps) Wake();
  return true;
}

void ExchangeRound::Leave() {
  uint64_t before = state_.load(), after;
  do {
    after = before + kLeft;
    if (!(after & kClosed) && Left(after) == ranks_) after = 0;
  } while (!state_.compare_exchange_weak(before, after));
}

bool ExchangeRound::IsRead() const {
  const uint64_t now = state_.load();
  return !IsOpen(now) || Taken(now) == ranks_;
}

}  // namespace jaxcomm::shm

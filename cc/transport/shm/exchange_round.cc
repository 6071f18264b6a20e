#include "cc/transport/shm/exchange_round.h"

namespace jaxcomm::shm {

bool ExchangeRound::Enter() {
  uint64_t before = state_.load(), after;
  do {
    const bool is_ours = (before & kTag) == tag_;
    if (is_ours ? (before & kClosed) != 0 || Entered(before) == ranks_ : !IsFree(before)) return false;
    after = (is_ours ? before : tag_) + kEntered;
  } while (!state_.compare_exchange_weak(before, after));
  if (Entered(after) == ranks_ && after & kSleeps) Wake(state_);
  return true;
}

void ExchangeRound::Decline() {
  uint64_t before = state_.load();
  do {
    if ((before & kTag) == tag_ ? (before & kClosed) != 0 : !IsFree(before)) return;
  } while (!state_.compare_exchange_weak(before, (before & kTag) == tag_ ? before | kClosed : tag_ | kClosed));
  if (before & kSleeps) Wake(state_);
}

bool ExchangeRound::Take() {
  uint64_t before = state_.load();
  do {
    if (!IsOpen(before)) return false;
  } while (!state_.compare_exchange_weak(before, before + kTaken));
  if (Taken(before) + 1 == ranks_ && before & kSleeps) Wake(state_);
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

#include "cc/transport/shm/transfer_state.h"

namespace jaxcomm::shm {

// Changes the state, and wakes the threads that wait for the change.
bool TransferState::Change(uint64_t before, uint64_t after) {
  if (!word_.compare_exchange_strong(before, after)) return false;
  if (before & kSleeps) Wake(word_);
  return true;
}

TransferState::Reserved TransferState::Reserve() {
  for (;;) {
    uint64_t now = word_.load();
    if (IsClosed(now)) {
      if (Change(now, 0)) return Reserved::kClosed;
    } else if (!IsFree(now)) {
      return Reserved::kBusy;
    } else if (word_.compare_exchange_strong(now, now | tag_ | kReserved)) {
      return Reserved::kYes;
    }
  }
}

void TransferState::Offer() {
  if (word_.exchange(tag_ | kOffered) & kSleeps) Wake(word_);
}

bool TransferState::Withdraw(bool even_if_read) {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & (kReserved | kOffered)) || (now & kReading && !even_if_read)) return false;
    if (Change(now, tag_ | kClosed)) return true;
  }
}

bool TransferState::Begin() {
  for (;;) {
    uint64_t now = word_.load();
    if (!IsMine(now) || now & kClosed) {
      ClearClosed();
      return false;
    }
    if (word_.compare_exchange_strong(now, now | kReading)) return true;
  }
}

bool TransferState::Take() {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || now & kClosed) {
      ClearClosed();
      return false;
    }
    if (Change(now, 0)) return true;
  }
}

bool TransferState::Close() {
  for (;;) {
    const uint64_t now = word_.load();
    if (IsClosed(now)) return ClearClosed();
    if (!IsFree(now)) return false;
    if (Change(now, tag_ | kClosed)) return true;
  }
}

// Clears the word if the other process has closed the transfer. Returns whether it had.
bool TransferState::ClearClosed() {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsClosed(now)) return false;
    if (Change(now, 0)) return true;
  }
}

}  // namespace jaxcomm::shm

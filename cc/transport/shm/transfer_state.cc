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
    if (ClearClosed()) return Reserved::kClosed;
    uint64_t now = word_.load();
    if (!IsFree(now) && !IsClosed(now)) return IsOfSameRanks(now) ? Reserved::kBehind : Reserved::kBusy;
    if (IsFree(now) && word_.compare_exchange_strong(now, now | tag_ | kReserved)) return Reserved::kYes;
  }
}

bool TransferState::Offer() {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & kReserved)) {
      ClearClosed();
      return false;
    }
    if (Change(now, tag_ | kOffered)) return true;
  }
}

bool TransferState::CloseReserved() {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & kReserved)) return false;
    if (Change(now, tag_ | kClosed)) return true;
  }
}

bool TransferState::Withdraw(bool while_read) {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & (kReserved | kOffered)) || (now & kReading && !while_read)) return false;
    if (Change(now, tag_ | kClosed)) return true;
  }
}

bool TransferState::BeginRead() {
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

bool TransferState::ClearClosed() {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsClosed(now)) return false;
    if (Change(now, 0)) return true;
  }
}

}  // namespace jaxcomm::shm

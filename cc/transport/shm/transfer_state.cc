#include "cc/transport/shm/transfer_state.h"

namespace jaxcomm::shm {

// Changes the state, and wakes the threads that wait for the change.
bool TransferState::Change(uint64_t before, uint64_t after) {
  if (!word_.compare_exchange_strong(before, after)) return false;
  if (before & kSleeps) Wake(word_);
  return true;
}

// Changes a state of this transfer that has the flag `from`. Returns false if the state is another one.
bool TransferState::Move(uint64_t from, uint64_t after) {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & from)) return false;
    if (Change(now, after)) return true;
  }
}

TransferState::Reserved TransferState::Reserve() {
  for (;;) {
    if (ClearClosed()) return Reserved::kClosed;
    uint64_t now = word_.load();
    if (IsFree(now)) {
      if (word_.compare_exchange_strong(now, now | tag_ | kReserved)) return Reserved::kYes;
    } else if (!IsClosed(now)) {
      return IsOfSameRanks(now) ? Reserved::kBehind : Reserved::kBusy;
    }
  }
}

bool TransferState::Offer() {
  if (Move(kReserved, tag_ | kOffered)) return true;
  ClearClosed();
  return false;
}

bool TransferState::BeginRead() {
  for (;;) {
    uint64_t now = word_.load();
    if (!IsMine(now) || !(now & kOffered)) break;
    if (word_.compare_exchange_strong(now, now | kReading)) return true;  // wakes nobody, so that the sender sleeps on
  }
  ClearClosed();
  return false;
}

bool TransferState::Take() {
  if (Move(kOffered, 0)) return true;
  ClearClosed();
  return false;
}

bool TransferState::CloseReserved() { return Move(kReserved, tag_ | kClosed); }

bool TransferState::Withdraw(bool while_read) {
  for (;;) {
    const uint64_t now = word_.load();
    if (!IsMine(now) || !(now & (kReserved | kOffered)) || (now & kReading && !while_read)) return false;
    if (Change(now, tag_ | kClosed)) return true;
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

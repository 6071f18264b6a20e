// The state of a transfer from one process to another, in memory that both processes write.
//
//   TransferState state(word, tag);   // the call determines the word and the tag
//   // The sender:
//   if (state.Reserve() == TransferState::Reserved::kYes) { … ; state.Offer(); }   // describes the bytes first
//   if (state.AwaitTaken(limits, yield, lives)) …                                  // unless the bytes are copies
//   // The receiver:
//   if (state.AwaitOffer(limits, yield, will_not_come) && state.BeginRead() && Read() && state.Take()) …
//
// Each process can close the transfer instead of waiting any longer. The other process finds it closed, and clears the
// word. When the receiver has taken the bytes, another transfer can use the word.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "cc/transport/shm/state_word.h"

namespace jaxcomm::shm {

class TransferState {
 public:
  using Clock = std::chrono::steady_clock;

  struct Limits {
    Clock::time_point arrival;  // the time until which the other process may arrive
    Clock::time_point end;      // the time until which the receiver may read
  };

  // `tag` distinguishes transfers that use the same word. A tag is not 0, and its 5 low bits are 0. Its 27 high bits
  // are the same for all transfers between two ranks.
  TransferState(StateWord& word, uint64_t tag) : word_(word), tag_(tag) {}

  // The functions of the sender. After Reserve has returned kYes, no other transfer uses the word until this one is
  // over. kBehind: an earlier transfer between the same ranks uses the word. kBusy: another one does.
  enum class Reserved { kYes, kBehind, kBusy, kClosed };
  Reserved Reserve();
  // Returns false if the receiver has closed the transfer.
  bool Offer();
  // Waits while Reserve would return kBehind.
  template <typename Yield>
  void AwaitFree(Clock::time_point end, const Yield& yield);
  // Waits until the receiver has taken the bytes. Closes the transfer if the receiver has not begun to read at the time
  // limits.arrival, or if it has not taken the bytes at the time limits.end or has ended: `lives()` is then false.
  template <typename Yield, typename Lives>
  bool AwaitTaken(const Limits& limits, const Yield& yield, const Lives& lives);
  // Whether the receiver may still read the bytes of this transfer.
  bool IsInUse() const {
    const uint64_t now = word_.load();
    return IsMine(now) && now & (kReserved | kOffered);
  }

  // The functions of the receiver.
  // Waits until the sender has offered bytes, at most until limits.end or until `will_not_come()` returns true. From
  // the time limits.arrival on, closes the transfer as soon as no other transfer uses the word. Returns whether bytes
  // have been offered. Calls `will_not_come` unless it returns at once.
  template <typename Yield, typename WillNotCome>
  bool AwaitOffer(const Limits& limits, const Yield& yield, const WillNotCome& will_not_come);
  // Begins to read bytes that stay in place. Returns false if the sender has withdrawn them.
  bool BeginRead();
  // Ends the transfer. Returns false if the sender has withdrawn the bytes.
  bool Take();

  // The functions of both.
  // Closes the transfer if the word is free. Returns whether the transfer is closed.
  bool Close();
  // Closes a transfer that has been reserved but not offered. Returns whether this call has closed the transfer.
  bool CloseReserved();
  // Closes a transfer that has been offered. `while_read`: also while the receiver reads the bytes. Returns whether
  // this call has closed the transfer.
  bool Withdraw(bool while_read);
  // Clears the word if the transfer is closed. Returns whether it was.
  bool ClearClosed();

 private:
  // The parts of the word: a tag and flags. If no other flag than kSleeps is set, any transfer can use the word.
  static constexpr uint64_t kReserved = 1;  // the sender describes its bytes
  static constexpr uint64_t kOffered = 2;
  static constexpr uint64_t kReading = 4;
  static constexpr uint64_t kClosed = 8;
  static constexpr uint64_t kSleeps = 16;  // a thread sleeps
  static constexpr uint64_t kTag = ~uint64_t{31}, kRanks = ~uint64_t{0} << 37;

  // Two states whose low halves are equal can make a thread miss a wake-up, so it does not sleep for longer than this.
  static constexpr std::chrono::milliseconds kStep{1};

  bool IsMine(uint64_t state) const { return (state & kTag) == tag_; }
  static bool IsFree(uint64_t state) { return (state & ~kSleeps) == 0; }
  bool IsOfSameRanks(uint64_t state) const {
    return (state & kRanks) == (tag_ & kRanks) && state & (kReserved | kOffered);
  }
  bool IsClosed(uint64_t state) const { return IsMine(state) && state & kClosed; }
  static Clock::time_point NextLook(Clock::time_point now, const Limits& limits) {
    return now < limits.arrival ? std::min(now + kStep, limits.arrival) : now + kStep;
  }

  bool Change(uint64_t before, uint64_t after);
  bool Move(uint64_t from, uint64_t after);

  StateWord& word_;
  const uint64_t tag_;
};

template <typename Yield>
void TransferState::AwaitFree(Clock::time_point end, const Yield& yield) {
  const auto is_over = [this](uint64_t state) { return !IsOfSameRanks(state); };
  yield([&] { return is_over(word_.load()); });
  while (Clock::now() < end && !is_over(SleepUntil(word_, kSleeps, std::min(Clock::now() + kStep, end), is_over))) {
  }
}

template <typename Yield, typename Lives>
bool TransferState::AwaitTaken(const Limits& limits, const Yield& yield, const Lives& lives) {
  const auto is_over = [this](uint64_t state) { return !IsMine(state) || state & kClosed; };
  yield([&] { return is_over(word_.load()); });
  for (;;) {
    const Clock::time_point now = Clock::now();
    const bool is_late = now >= limits.arrival;
    if (is_late && Withdraw(/*while_read=*/now >= limits.end || !lives())) return false;
    if (is_over(SleepUntil(word_, kSleeps, NextLook(now, limits), is_over))) return !ClearClosed();
  }
}

template <typename Yield, typename WillNotCome>
bool TransferState::AwaitOffer(const Limits& limits, const Yield& yield, const WillNotCome& will_not_come) {
  const auto has_come = [this](uint64_t state) { return IsMine(state) && state & (kOffered | kClosed); };
  yield([&] { return has_come(word_.load()); });
  if (has_come(word_.load())) return !ClearClosed();
  for (;;) {
    const Clock::time_point now = Clock::now();
    if (now >= limits.end || will_not_come()) {
      // The sender may have offered the bytes just before, or may still do so.
      while (!has_come(word_.load())) {
        const uint64_t state = word_.load();
        const bool is_foreign = !IsMine(state) && !IsFree(state);
        if (is_foreign || CloseReserved() || Close()) return false;
      }
      return !ClearClosed();
    }
    if (now >= limits.arrival && Close()) return false;
    if (has_come(SleepUntil(word_, kSleeps, NextLook(now, limits), has_come))) return !ClearClosed();
  }
}

}  // namespace jaxcomm::shm

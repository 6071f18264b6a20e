// The state of a transfer from one process to another, in memory that both processes write.
//
//   TransferState state(word, tag);   // the call determines the word and the tag
//   if (state.Reserve() == TransferState::Reserved::kYes) { ... describe the bytes ...; state.Offer(); }   // the
//   sender if (state.AwaitOffer(limits, yield, will_not_come) && state.Begin() && Read() && state.Take()) ...     //
//   the receiver
//
// Each process can close the transfer instead of waiting any longer. The other process then finds it closed, and clears
// the word. When the receiver has taken the bytes, another transfer can use the word.
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
    Clock::time_point arrival;  // until then, the other process may arrive
    Clock::time_point end;      // until then, it may have read the bytes
  };

  // `tag` distinguishes transfers that use the same word. The low half of a tag is 0, and the high half is not 0.
  TransferState(StateWord& word, uint64_t tag) : word_(word), tag_(tag) {}

  // The functions of the sender. After Reserve has returned kYes, no other transfer uses the word until Take.
  enum class Reserved { kYes, kBusy, kClosed };
  Reserved Reserve();
  void Offer();
  // Waits until no other transfer uses the word, or until the receiver has closed this transfer.
  template <typename Yield>
  void AwaitFree(Clock::time_point end, const Yield& yield);
  // Waits until the receiver has taken the bytes. Closes the transfer if the receiver has not begun to read them at the
  // time limits.arrival, has not taken them at the time limits.end, or has ended: `lives()`.
  template <typename Yield, typename Lives>
  bool AwaitTaken(const Limits& limits, const Yield& yield, const Lives& lives);
  // Closes a transfer that has been offered. `even_if_read`: also while the receiver reads the bytes. The receiver also
  // calls this function, if it does not take the bytes. Returns whether this call has closed the transfer.
  bool Withdraw(bool even_if_read);
  // Whether the receiver may still read the bytes of this transfer.
  bool IsOffered() const {
    const uint64_t now = word_.load();
    return IsMine(now) && now & (kReserved | kOffered);
  }

  // The functions of the receiver.
  // Waits until the sender has offered bytes. At the time limits.arrival, closes the transfer, but not while another
  // transfer uses the word. In that case waits until limits.end, at most until `will_not_come()` returns true.
  template <typename Yield, typename WillNotCome>
  bool AwaitOffer(const Limits& limits, const Yield& yield, const WillNotCome& will_not_come);
  // Begins to read bytes that stay in place. Returns false if the sender has withdrawn them.
  bool Begin();
  // Returns false if the sender has withdrawn the bytes. The transfer is then over.
  bool Take();
  // Closes the transfer if nothing has been offered. Returns whether it is closed. Then this process must not wait for
  // the other one any more.
  bool Close();

 private:
  // The parts of the word: a tag and flags. If no other flag than kSleeps is set, any transfer can use the word.
  static constexpr uint64_t kReserved = 1;  // the sender describes its bytes
  static constexpr uint64_t kOffered = 2;
  static constexpr uint64_t kReading = 4;
  static constexpr uint64_t kClosed = 8;
  static constexpr uint64_t kSleeps = 16;  // a thread sleeps
  static constexpr uint64_t kTag = 0xffffffff00000000;

  // Two states whose low halves are equal can make a thread miss a wake-up, so it does not sleep for longer than this.
  static constexpr std::chrono::milliseconds kStep{1};

  bool IsMine(uint64_t state) const { return (state & kTag) == tag_; }
  static bool IsFree(uint64_t state) { return (state & ~kSleeps) == 0; }
  bool IsClosed(uint64_t state) const { return IsMine(state) && state & kClosed; }
  static Clock::time_point NextLook(Clock::time_point now, const Limits& limits) {
    return now < limits.arrival ? std::min(now + kStep, limits.arrival) : now + kStep;
  }

  bool Change(uint64_t before, uint64_t after);
  bool ClearClosed();

  StateWord& word_;
  const uint64_t tag_;
};

template <typename Yield>
void TransferState::AwaitFree(Clock::time_point end, const Yield& yield) {
  const auto is_over = [this](uint64_t state) { return IsFree(state) || IsClosed(state); };
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
    if (is_late && Withdraw(/*even_if_read=*/now >= limits.end || !lives())) return false;
    if (is_over(SleepUntil(word_, kSleeps, NextLook(now, limits), is_over))) return !ClearClosed();
  }
}

template <typename Yield, typename WillNotCome>
bool TransferState::AwaitOffer(const Limits& limits, const Yield& yield, const WillNotCome& will_not_come) {
  const auto has_come = [this](uint64_t state) { return IsMine(state) && state & (kOffered | kClosed); };
  yield([&] { return has_come(word_.load()); });
  for (;;) {
    const Clock::time_point now = Clock::now();
    if (now >= limits.arrival && Close()) return false;
    // If the sender will not come, it may have offered the bytes just before.
    const bool is_over = now >= limits.end || will_not_come();
    const uint64_t state = is_over ? word_.load() : SleepUntil(word_, kSleeps, NextLook(now, limits), has_come);
    if (is_over || has_come(state)) return has_come(state) && !ClearClosed();
  }
}

}  // namespace jaxcomm::shm

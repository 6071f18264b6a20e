// The state of an exchange, in memory that all its ranks write. The exchange succeeds if all ranks take the bytes while
// the exchange is open. Otherwise a rank closes the exchange, and the exchange fails on all ranks.
//
//   ExchangeRound round(state, tag, ranks);             // the call determines the state and the tag
//   if (round.Enter()) {
//     bool ends_well = round.AwaitEntered(end, yield) && Read() && round.Take();
//     if (ends_well) ends_well = round.AwaitTaken(end, step, yield, lives);   // if ranks read each other's memory
//     if (!ends_well) round.Close();
//     round.Leave();
//   }
//
// A rank that cannot enter calls Decline. After AwaitTaken or Close has returned, a rank may overwrite its bytes: the
// other ranks accept no bytes that they read later. When all ranks that entered have left, another call can use the
// state.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "cc/transport/shm/state_word.h"

namespace jaxcomm::shm {

class ExchangeRound {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kMaxRanks = 255;

  // `tag` distinguishes calls that use the same state. The low half of a tag is 0, and the high half is not 0.
  ExchangeRound(StateWord& state, uint64_t tag, size_t ranks) : state_(state), tag_(tag), ranks_(ranks) {}

  // Counts this rank as present. Returns false if the exchange is closed or another call uses the state.
  bool Enter();
  // Closes the exchange for a rank that has not entered. Does nothing if another call uses the state.
  void Decline();
  // Waits until all ranks have entered. Closes the exchange if a rank is missing at the time `end`. Returns whether the
  // exchange is open. Before sleeping, calls yield(predicate), which may poll for a while until predicate() is true.
  template <typename Yield>
  bool AwaitEntered(Clock::time_point end, const Yield& yield) {
    const auto is_over = [this](uint64_t now) { return !IsOpen(now) || Entered(now) == ranks_; };
    yield([&] { return is_over(state_.load()); });
    if (!is_over(SleepUntil(state_, kSleeps, end, is_over))) CloseUnless(is_over);
    return IsOpen(state_.load());
  }
  // Counts this rank as having taken all the bytes that it needs. Returns false if the exchange is closed.
  bool Take();
  // Waits until all ranks have taken the bytes that they need, and calls `lives` after every `step`. Closes the
  // exchange at the time `end`, or if `lives` returns false. Returns whether the exchange has succeeded.
  template <typename Yield, typename Lives>
  bool AwaitTaken(Clock::time_point end, std::chrono::nanoseconds step, const Yield& yield, const Lives& lives) {
    const auto is_over = [this](uint64_t now) { return !IsOpen(now) || Taken(now) == ranks_; };
    yield([&] { return is_over(state_.load()); });
    for (;;) {
      const Clock::time_point now = Clock::now(), until = now + step;
      if (is_over(SleepUntil(state_, kSleeps, until < end ? until : end, is_over))) break;
      if (now >= end || !lives()) Close();
    }
    return Taken(state_.load()) == ranks_;
  }
  // Closes the exchange unless all ranks have taken the bytes that they need.
  void Close() {
    CloseUnless([this](uint64_t now) { return !IsOpen(now) || Taken(now) == ranks_; });
  }
  void Leave();

  // Whether no rank needs bytes any more: all ranks have taken theirs, or the exchange is over.
  bool IsRead() const;

 private:
  // The parts of the state: three counters of ranks, two flags and the tag. If the state is 0, any call can use it.
  static constexpr uint64_t kEntered = 1, kTaken = 1 << 8, kLeft = 1 << 16;  // added by each Enter, Take and Leave
  static constexpr uint64_t kClosed = 1 << 24;
  static constexpr uint64_t kSleeps = 1 << 25;  // a rank sleeps
  static constexpr uint64_t kTag = 0xffffffff00000000;

  static size_t Entered(uint64_t state) { return state / kEntered % 256; }
  static size_t Taken(uint64_t state) { return state / kTaken % 256; }
  static size_t Left(uint64_t state) { return state / kLeft % 256; }
  bool IsOpen(uint64_t state) const { return (state & kTag) == tag_ && !(state & kClosed); }
  bool IsFree(uint64_t state) const { return state == 0 || (state & kClosed && Left(state) == Entered(state)); }

  template <typename Unless>
  void CloseUnless(const Unless& unless);

  StateWord& state_;
  const uint64_t tag_;
  const size_t ranks_;
};

template <typename Unless>
void ExchangeRound::CloseUnless(const Unless& unless) {
  uint64_t before = state_.load();
  do {
    if (unless(before)) return;
  } while (!state_.compare_exchange_weak(before, before | kClosed));
  if (before & kSleeps) Wake(state_);
}

}  // namespace jaxcomm::shm

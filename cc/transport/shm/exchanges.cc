#include "cc/transport/shm/exchanges.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <optional>
#include <utility>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/spans.h"

namespace jaxcomm::shm {
namespace {

using State = std::atomic<uint64_t>;
using Clock = std::chrono::steady_clock;

// The parts of the state of a round. A state of 0 means that the round is free. The tag distinguishes calls that use
// the same round.
constexpr uint64_t kCame = 1, kTook = 1 << 12;  // one rank that has arrived, one rank that has read all bytes
constexpr size_t kMaxRanks = kTook - 1;
constexpr uint64_t kClosed = 1 << 24;
constexpr uint64_t kSleeps = 1 << 25;  // a rank sleeps
constexpr uint64_t kTag = 0xffffffff00000000;

size_t Came(uint64_t state) { return state & (kTook - 1); }
size_t Took(uint64_t state) { return state / kTook & (kTook - 1); }

uint64_t TagOf(const CallId& call) { return (HashCallId()(call) << 32) | (uint64_t{1} << 32); }

// Successive calls on a communicator mostly use different rounds.
size_t RoundOf(const CallId& call) { return (call.communicator + call.launch + call.site + call.iteration) % kRounds; }

// Returns the futex word of a state. This is the low half of the state, which holds everything but the tag.
uint32_t* Word(State& state) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  return reinterpret_cast<uint32_t*>(&state);
}

void Wake(State& state) { syscall(SYS_futex, Word(state), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Sleep(State& state, uint64_t expected, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time = {seconds.count(), (limit - seconds).count()};
  syscall(SYS_futex, Word(state), FUTEX_WAIT, static_cast<uint32_t>(expected), &time, nullptr, 0);
}

// Counts this rank in the round and returns the new state. Returns nullopt if another call uses the round, or if the
// call's round is closed.
std::optional<uint64_t> Come(State& state, uint64_t tag) {
  uint64_t before = state.load();
  for (;;) {
    const bool is_ours = (before & kTag) == tag;
    if (before & kClosed ? is_ours : before != 0 && !is_ours) return std::nullopt;
    const uint64_t after = is_ours ? before + kCame : tag | kCame;
    if (state.compare_exchange_weak(before, after)) return after;
  }
}

bool IsOpen(uint64_t state, uint64_t tag) { return (state & kTag) == tag && !(state & kClosed); }

// Sleeps until `ready(state)` holds, but not longer than until `end`. Returns the last state.
template <typename Ready>
uint64_t SleepUntil(State& state, Clock::time_point end, const Ready& ready) {
  for (uint64_t now = state.load();;) {
    const auto left = end - Clock::now();
    if (ready(now) || left <= left.zero()) return now;
    if (!(now & kSleeps) && !state.compare_exchange_weak(now, now | kSleeps)) continue;
    Sleep(state, now | kSleeps, left);
    now = state.load();
  }
}

// Closes the call's round, in which this rank is not counted. Does nothing if the round is open for another call.
void Decline(State& state, uint64_t tag) {
  uint64_t before = state.load();
  do {
    if (before != 0 && !(before & kClosed) && !IsOpen(before, tag)) return;
  } while (!state.compare_exchange_weak(before, tag | kClosed));
  if (before & kSleeps) Wake(state);
}

// Waits until all ranks have arrived, and returns true. If they have not arrived by `end`, closes the round and returns
// false.
bool Await(State& state, uint64_t tag, size_t ranks, Clock::time_point end, Yielding* yielding) {
  // After a round has been closed, another call may use it.
  const auto is_over = [&](uint64_t now) { return !IsOpen(now, tag) || Came(now) == ranks; };
  if (yielding) yielding->Until([&] { return is_over(state.load()); });
  uint64_t now = SleepUntil(state, end, is_over);
  while (!is_over(now)) {
    if (!state.compare_exchange_weak(now, now | kClosed)) continue;
    if (now & kSleeps) Wake(state);
    return false;
  }
  return IsOpen(now, tag);
}

// Counts a rank that has read the bytes of all ranks. The last of these ranks frees the round.
void Take(State& state, size_t ranks) {
  uint64_t before = state.load();
  while (!state.compare_exchange_weak(before, Took(before) + 1 == ranks ? 0 : before + kTook)) continue;
  if (Took(before) + 1 == ranks && before & kSleeps) Wake(state);
}

}  // namespace

bool Exchanges::Try(const Exchange& mine, const std::vector<const MemoryFile*>& files, std::chrono::nanoseconds limit,
                    bool yields, const TakeExchanged& take) {
  const size_t index = RoundOf(mine.call), ranks = files.size();
  const Extent extent = Measure(mine.spans);
  if (ranks > kMaxRanks || extent.at + extent.bytes > Transport::kMaxExchanged) return false;
  std::vector<Exchanged> exchanged;
  exchanged.reserve(ranks);  // allocates now: no allocation may fail once this rank is counted
  State& round = files[0]->writable().rounds[index].state;
  const uint64_t tag = TagOf(mine.call);
  const Clock::time_point end = Clock::now() + limit;
  if (!Claim(index, round, tag, end)) {
    Decline(round, tag);
    return false;
  }
  ExchangeCell& cell = memory_->header().cells[index];
  cell.call = mine.call;
  cell.fingerprint = mine.fingerprint;
  cell.bytes = extent.at + extent.bytes;
  cell.at = mine.at.time_since_epoch();
  Gather(mine.spans, 0, cell.data);

  const std::optional<uint64_t> come = Come(round, tag);
  bool all = come.has_value();
  if (all && Came(*come) == ranks) {
    if (*come & kSleeps) Wake(round);
  } else if (all) {
    all = Await(round, tag, ranks, end, yields && limit > limit.zero() ? &cells_[index].yielding : nullptr);
  }
  if (all) {
    for (const MemoryFile* const file : files) {
      const ExchangeCell& other = file->header().cells[index];
      // All ranks compare the same cells, so they agree.
      all = all && other.call == cell.call && other.fingerprint == cell.fingerprint && other.bytes == cell.bytes;
      exchanged.push_back({other.data, Clock::time_point(other.at)});
    }
    if (all) take(exchanged);
    Take(round, ranks);
  }
  Release(index);
  return all;
}

// Takes the cell for this thread. Returns false if another thread uses the cell, or if other ranks still read the cell
// at `end`.
bool Exchanges::Claim(size_t index, State& round, uint64_t tag, Clock::time_point end) {
  Cell& cell = cells_[index];
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(cell.is_used, true)) return false;
  }
  // All ranks of the last round of this cell have arrived, so they finish reading soon.
  if (cell.round != nullptr) {
    const auto is_read = [&](uint64_t state) { return !IsOpen(state, cell.tag); };
    if (!is_read(SleepUntil(*cell.round, end, is_read))) {
      Release(index);
      return false;
    }
  }
  cell.round = &round;
  cell.tag = tag;
  return true;
}

void Exchanges::Release(size_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  cells_[index].is_used = false;
}

}  // namespace jaxcomm::shm

#include "cc/transport/shm/exchanges.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "cc/base/yielding.h"
#include "cc/transport/cancelled_calls.h"
#include "cc/transport/spans.h"

namespace jaxcomm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// While a rank waits for readers, it checks at this interval whether the other ranks are alive.
constexpr std::chrono::milliseconds kLook{100};

// If contents may stay in place, two ranks copy only contents up to this size. Reading larger contents in place takes
// less time than copying them twice, although the ranks then wait for each other once more. That wait takes longer with
// more ranks, which therefore copy all contents that fit.
constexpr int64_t kMostCopiedByTwo = 32 << 10;

uint64_t TagOf(const CallId& call) { return (HashCallId()(call) << 32) | (uint64_t{1} << 32); }

// Successive calls on a communicator use different rounds. The communicator's number is hashed, because the low bits of
// such numbers are often equal.
size_t RoundOf(const CallId& call) {
  return ((call.communicator * 0x9e3779b97f4a7c15 >> 32) + call.launch + call.site + call.iteration) % kRounds;
}

// A rank's cell, and the buffer of `room` bytes beside the cell, into which the rank copies its bytes if they fit.
struct CellPlace {
  ExchangeCell* cell;
  std::byte* data;
  int64_t room;
};

CellPlace PlaceOf(const MemoryFile& file, const Exchange& exchange, size_t rank) {
  const size_t round = RoundOf(exchange.call);
  if (exchange.reads != ReadPattern::kTransfer) {
    FileHeader::GroupCell& cell = file.header().cells[round];
    return {&cell.cell, cell.data, sizeof(cell.data)};
  }
  PeerChannel& channel = file.channel(exchange.processes[1 - rank]);
  if (rank == 1) return {&channel.received[round], nullptr, 0};
  return {&channel.sent[round].cell, channel.sent[round].data, sizeof(channel.sent[round].data)};
}

// Reads the cell once, because the other process may write it at any time.
ExchangeCell ReadCell(const ExchangeCell& cell) {
  ExchangeCell copy;
  std::memcpy(&copy, &cell, sizeof(copy));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

}  // namespace

class Exchanges::Pending final : public PendingExchange {
 public:
  Pending(Exchanges& owner, Exchange mine, std::vector<Member> members)
      : owner_(owner),
        mine_(std::move(mine)),
        members_(std::move(members)),
        tag_(TagOf(mine_.call)),
        state_(StateOf(mine_, members_)),
        round_(state_, tag_, members_.size()) {
    exchanged_.reserve(members_.size());
  }
  ~Pending() override {
    if (!has_entered_) round_.Decline();
    if (has_entered_ && !ends_well_) round_.Close();
    if (has_entered_) round_.Leave();
    if (cell_) owner_.Release(*cell_);
  }

  bool Enter() {
    cell_ = owner_.Claim(mine_, {true, &state_, tag_, members_.size()});
    if (!cell_) return false;
    const CellPlace place = PlaceOf(*members_[mine_.rank].file, mine_, mine_.rank);
    ExchangeCell& cell = *place.cell;
    cell.bytes = Measured();
    const bool is_readable = IsReadable();
    const int64_t room = is_readable && members_.size() == 2 ? std::min(place.room, kMostCopiedByTwo) : place.room;
    const bool fits = cell.bytes <= room;
    if (!fits && !is_readable) return false;
    cell.call = mine_.call;
    cell.fingerprint = mine_.fingerprint;
    cell.at = mine_.at.time_since_epoch();
    cell.in_place = fits ? 0 : 1;
    if (fits) {
      Gather(mine_.spans, 0, place.data);
    } else {
      auto* addresses = reinterpret_cast<const std::byte**>(place.data);
      for (const ConstSpan& span : mine_.spans) *addresses++ = span.data;
    }
    owner_.memory_->header().processor = sched_getcpu();
    return has_entered_ = round_.Enter(/*takes=*/is_sender());
  }

  bool Finish(const Limits& limits, const TakeExchanged& take) override {
    ends_well_ = Run(limits, take);
    owner_.memory_->header().waits_since = 0;
    if (!ends_well_) round_.Close();
    return ends_well_;
  }

 private:
  bool Run(const Limits& limits, const TakeExchanged& take) {
    const Clock::time_point begun = Clock::now();
    const auto yield = [&](const auto& ready) {
      if (limits.arrivals <= limits.arrivals.zero()) return;  // the caller does not want to wait
      if (ready()) return;
      owner_.memory_->header().waits_since = Clock::now().time_since_epoch().count();
      std::atomic<int64_t>& rest = owner_.memory_->writable().rests_until;
      if (YieldUntil(ready, rest, [this](Clock::time_point end) { return HadProcessor(end); })) {
        for (const Member& member : members_) member.file->writable().rests_until = rest.load();
      }
    };
    if (!round_.AwaitEntered(begun + limits.arrivals, yield)) return false;
    owner_.memory_->header().waits_since = 0;
    const bool has_taken = Collect() && take(exchanged_) && (is_sender() || round_.Take());
    if (!has_taken || !is_in_place_) return has_taken;
    return round_.AwaitTaken(mine_.at + limits.end, kLook, yield, [this] {
      return std::all_of(members_.begin(), members_.end(),
                         [](const Member& member) { return !member.lives || member.lives(); });
    });
  }

  // Whether another rank of the exchange had this thread's processor until about the time `end`. That rank now either
  // runs or has waited since shortly before `end`.
  bool HadProcessor(Clock::time_point end) const {
    const int processor = sched_getcpu();
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const FileHeader& header = members_[rank].file->header();
      const std::chrono::nanoseconds since(header.waits_since.load());
      const bool has_run = since == since.zero() || since >= (end - kSlowYield).time_since_epoch();
      if (rank != mine_.rank && has_run && header.processor == processor) return true;
    }
    return false;
  }

  bool is_transfer() const { return mine_.reads == ReadPattern::kTransfer; }
  bool is_sender() const { return is_transfer() && mine_.rank == 0; }

  // Returns whether the bytes can stay in place. All other ranks must be able to read this process's memory, and this
  // process must be able to read theirs. The second condition does not apply to the sender of a transfer.
  bool IsReadable() const {
    if (!mine_.in_place || (mine_.spans.size() != 1 && mine_.reads != ReadPattern::kSpanPerReader)) return false;
    const auto can_read = [this](const Member& member) {
      return &member == &members_[mine_.rank] || (member.reads && (is_sender() || member.memory != nullptr));
    };
    return std::all_of(members_.begin(), members_.end(), can_read);
  }

  int64_t Measured() const {
    const Extent extent = Measure(mine_.spans);
    return extent.at + extent.bytes;
  }

  // Finds the bytes of all ranks. Returns false if the cells do not match. All ranks compare the same cells, so all
  // ranks get the same result.
  bool Collect() {
    const bool has_span_per_reader = mine_.reads == ReadPattern::kSpanPerReader;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const CellPlace place = PlaceOf(*members_[rank].file, mine_, rank);
      const ExchangeCell cell = ReadCell(*place.cell);
      const bool in_place = cell.in_place == 1;
      if (cell.in_place > 1 || (in_place && place.room == 0)) return false;
      if (!(cell.call == mine_.call) || cell.fingerprint != mine_.fingerprint) return false;
      if (cell.bytes < 0 || (!in_place && cell.bytes > place.room)) return false;
      if (!is_transfer() && cell.bytes != Measured()) return false;
      const bool is_other = rank != mine_.rank;
      if (is_other && in_place && members_[rank].memory == nullptr) return false;
      is_in_place_ = is_in_place_ || in_place;
      // The index of the span that this rank reads, among the spans of `rank`.
      const size_t span = has_span_per_reader && is_other ? mine_.rank - (mine_.rank > rank ? 1 : 0) : 0;
      const int64_t bytes = !has_span_per_reader ? cell.bytes : is_other ? mine_.spans[0].bytes : 0;
      const std::byte* data = place.data + (has_span_per_reader ? mine_.spans[span].at : 0);
      if (in_place) data = reinterpret_cast<const std::byte* const*>(place.data)[span];
      exchanged_.push_back(
          {data, bytes, Clock::time_point(cell.at), in_place && is_other ? members_[rank].memory : nullptr});
    }
    return true;
  }

  static ExchangeRound::State& StateOf(const Exchange& mine, const std::vector<Member>& members) {
    const size_t round = RoundOf(mine.call);
    if (mine.reads == ReadPattern::kTransfer) return members[0].file->transfer_round(mine.processes[1], round);
    return members[0].file->writable().rounds[round].state;
  }

  Exchanges& owner_;
  Cell* cell_ = nullptr;
  const Exchange mine_;
  const std::vector<Member> members_;
  const uint64_t tag_;
  ExchangeRound::State& state_;
  ExchangeRound round_;
  bool has_entered_ = false, is_in_place_ = false, ends_well_ = false;
  std::vector<Exchanged> exchanged_;
};

std::unique_ptr<PendingExchange> Exchanges::Join(Exchange mine, std::vector<Member> members) {
  if (members.size() > ExchangeRound::kMaxRanks) return nullptr;
  const Extent extent = Measure(mine.spans);
  if (!mine.in_place && extent.at + extent.bytes > Transport::kMaxExchanged) return nullptr;
  auto pending = std::make_unique<Pending>(*this, std::move(mine), std::move(members));
  return pending->Enter() ? std::move(pending) : nullptr;
}

// Takes the call's cell for this thread. Returns null if another thread uses the cell, or if other ranks may still read
// it.
Exchanges::Cell* Exchanges::Claim(const Exchange& mine, const Cell& use) {
  const bool is_transfer = mine.reads == ReadPattern::kTransfer, is_receiver = is_transfer && mine.rank == 1;
  size_t index = RoundOf(mine.call);
  if (is_transfer) index += kRounds * (1 + 2 * size_t{mine.processes[1 - mine.rank]} + mine.rank);
  Cell& cell = cells_[index];
  std::lock_guard<std::mutex> lock(mutex_);
  if (cell.is_used) return nullptr;
  if (cell.state != nullptr) {
    // A sender may read the receiver's cell even after the receiver has taken the bytes.
    const ExchangeRound last(*cell.state, cell.tag, cell.ranks);
    if (is_receiver ? !last.IsOver() : !last.IsRead()) return nullptr;
  }
  cell = use;
  return &cell;
}

void Exchanges::Release(Cell& cell) {
  std::lock_guard<std::mutex> lock(mutex_);
  cell.is_used = false;
}

}  // namespace jaxcomm::shm

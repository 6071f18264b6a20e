#include "cc/transport/shm/exchanges.h"

#include <algorithm>
#include <chrono>

#include "cc/base/yielding.h"
#include "cc/transport/cancelled_calls.h"
#include "cc/transport/spans.h"

namespace jaxcomm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// The interval at which a rank that waits for readers checks whether they live.
constexpr std::chrono::milliseconds kLook{100};

uint64_t TagOf(const CallId& call) { return (HashCallId()(call) << 32) | (uint64_t{1} << 32); }

// Successive calls on a communicator use different rounds.
size_t RoundOf(const CallId& call) { return (call.communicator + call.launch + call.site + call.iteration) % kRounds; }

// A rank's cell, and the room for its bytes.
struct CellPlace {
  ExchangeCell* cell;
  std::byte* data;
  int64_t room;
};

CellPlace PlaceOf(const MemoryFile& file, const Exchange& exchange, size_t rank) {
  const size_t round = RoundOf(exchange.call);
  if (!exchange.is_transfer) {
    FileHeader::GroupCell& cell = file.header().cells[round];
    return {&cell.cell, cell.data, sizeof(cell.data)};
  }
  PeerChannel& channel = file.channel(exchange.processes[1 - rank]);
  if (rank == 1) return {&channel.received[round], nullptr, 0};
  return {&channel.sent[round].cell, channel.sent[round].data, sizeof(channel.sent[round].data)};
}

}  // namespace

class Exchanges::Pending final : public PendingExchange {
 public:
  Pending(Exchanges& owner, Cell& cell, const Exchange& mine, std::vector<Member> members)
      : owner_(owner),
        cell_(cell),
        mine_(mine),
        members_(std::move(members)),
        round_(*cell.state, cell.tag, members_.size()) {
    exchanged_.reserve(members_.size());  // allocates now: no allocation may fail once this rank has entered
  }
  ~Pending() override {
    if (!has_entered_) round_.Decline();
    if (has_entered_ && !ends_well_) round_.Close();
    if (has_entered_) round_.Leave();
    owner_.Release(cell_);
  }

  bool Enter() {
    const CellPlace place = PlaceOf(*members_[mine_.rank].file, mine_, mine_.rank);
    ExchangeCell& cell = *place.cell;
    cell.bytes = Measured();
    cell.in_place = cell.bytes > place.room;
    if (cell.in_place && !IsReadable()) return false;
    cell.call = mine_.call;
    cell.fingerprint = mine_.fingerprint;
    cell.at = mine_.at.time_since_epoch();
    cell.address = cell.in_place ? reinterpret_cast<uint64_t>(mine_.spans[0].data) : 0;
    if (!cell.in_place) Gather(mine_.spans, 0, place.data);
    return has_entered_ = round_.Enter(/*takes=*/is_sender());
  }

  bool Finish(const Limits& limits, const TakeExchanged& take) override { return ends_well_ = Run(limits, take); }

 private:
  bool Run(const Limits& limits, const TakeExchanged& take) {
    const Clock::time_point begun = Clock::now();
    const auto yield = [&](const auto& ready) {
      if (!limits.yields || limits.arrivals <= limits.arrivals.zero()) return;
      std::atomic<int64_t>& rest = owner_.memory_->writable().rests_until;
      if (YieldUntil(ready, rest)) {
        for (const Member& member : members_) member.file->writable().rests_until = rest.load();
      }
    };
    if (!round_.AwaitEntered(begun + limits.arrivals, yield)) return false;
    const bool has_taken = Collect() && take(exchanged_) && (is_sender() || round_.Take());
    if (!has_taken || !is_in_place_) return has_taken;
    return round_.AwaitTaken(begun + limits.end, kLook, yield, [this] {
      return std::all_of(members_.begin(), members_.end(),
                         [](const Member& member) { return !member.lives || member.lives(); });
    });
  }

  bool is_sender() const { return mine_.is_transfer && mine_.rank == 0; }

  // Whether the bytes may stay in place: the ranks that need them can read them. The receiver of a transfer brings no
  // bytes.
  bool IsReadable() const {
    if (!mine_.in_place || mine_.spans.size() != 1) return false;
    const auto can_read = [this](const Member& member) {
      return &member == &members_[mine_.rank] || (member.reads && (is_sender() || member.memory != nullptr));
    };
    return std::all_of(members_.begin(), members_.end(), can_read);
  }

  int64_t Measured() const {
    const Extent extent = Measure(mine_.spans);
    return extent.at + extent.bytes;
  }

  // Finds the bytes of all ranks. All ranks compare the same cells, so they agree on the result.
  bool Collect() {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      const CellPlace place = PlaceOf(*members_[rank].file, mine_, rank);
      const ExchangeCell cell = *place.cell;  // a copy, as the other process may write its cell at any time
      if (!(cell.call == mine_.call) || cell.fingerprint != mine_.fingerprint) return false;
      if (cell.bytes < 0 || (!cell.in_place && cell.bytes > place.room)) return false;
      if (!mine_.is_transfer && cell.bytes != Measured()) return false;
      const bool is_other = rank != mine_.rank;
      if (is_other && cell.in_place && members_[rank].memory == nullptr) return false;
      is_in_place_ = is_in_place_ || cell.in_place;
      exchanged_.push_back({cell.in_place ? reinterpret_cast<const std::byte*>(cell.address) : place.data, cell.bytes,
                            Clock::time_point(cell.at), cell.in_place && is_other ? members_[rank].memory : nullptr});
    }
    return true;
  }

  Exchanges& owner_;
  Cell& cell_;
  const Exchange mine_;
  const std::vector<Member> members_;
  Round round_;
  bool has_entered_ = false, is_in_place_ = false, ends_well_ = false;
  std::vector<Exchanged> exchanged_;
};

std::unique_ptr<PendingExchange> Exchanges::Join(const Exchange& mine, std::vector<Member> members) {
  const size_t round = RoundOf(mine.call);
  if (members.size() > Round::kMaxRanks) return nullptr;
  const Extent extent = Measure(mine.spans);
  if (!mine.in_place && extent.at + extent.bytes > Transport::kMaxExchanged) return nullptr;
  Round::State& state = mine.is_transfer ? members[0].file->transfer_round(mine.processes[1], round)
                                         : members[0].file->writable().rounds[round].state;
  const uint64_t tag = TagOf(mine.call);
  Cell* const cell = Claim(mine);
  if (cell == nullptr) {
    Round(state, tag, members.size()).Decline();
    return nullptr;
  }
  cell->state = &state;
  cell->tag = tag;
  cell->ranks = members.size();
  auto pending = std::make_unique<Pending>(*this, *cell, mine, std::move(members));
  return pending->Enter() ? std::move(pending) : nullptr;
}

// Takes the call's cell for this thread. Returns null if another thread uses the cell, or if other ranks still read its
// bytes.
Exchanges::Cell* Exchanges::Claim(const Exchange& mine) {
  size_t index = RoundOf(mine.call);
  if (mine.is_transfer) index += kRounds * (1 + 2 * size_t{mine.processes[1 - mine.rank]} + mine.rank);
  Cell& cell = cells_[index];
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_read = cell.state == nullptr || Round(*cell.state, cell.tag, cell.ranks).IsRead();
  if (!is_read || std::exchange(cell.is_used, true)) return nullptr;
  return &cell;
}

void Exchanges::Release(Cell& cell) {
  std::lock_guard<std::mutex> lock(mutex_);
  cell.is_used = false;
}

}  // namespace jaxcomm::shm

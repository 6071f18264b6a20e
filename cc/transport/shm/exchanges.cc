#include "cc/transport/shm/exchanges.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/shm/yield_to_peers.h"
#include "cc/transport/spans.h"

namespace jaxcomm::shm {
namespace {

using Clock = std::chrono::steady_clock;

// While a rank waits for readers, it checks at this interval whether the other ranks are alive.
constexpr std::chrono::milliseconds kLook{100};

uint64_t TagOf(const CallId& call) { return (HashCallId()(call) << 32) | (uint64_t{1} << 32); }

// A rank's cell, and the buffer beside the cell, into which the rank copies its bytes if they fit.
FileHeader::GroupCell& CellOf(const MemoryFile& file, const CallId& call) { return file.header().cells[RoundOf(call)]; }

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
    others_.reserve(members_.size());
    for (const Member& member : members_) {
      if (&member != &members_[mine_.rank]) others_.push_back(member.file);
    }
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
    FileHeader::GroupCell& place = CellOf(*owner_.memory_, mine_.call);
    ExchangeCell& cell = place.cell;
    cell.bytes = Measured();
    const bool fits = cell.bytes <= Transport::kMaxExchanged;
    if (!fits && !IsReadable()) return false;
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
    return has_entered_ = round_.Enter();
  }

  bool Finish(const WaitLimits& limits, const TakeExchanged& take) override {
    ends_well_ = Run(limits, take);
    owner_.memory_->header().waits_since = 0;
    if (!ends_well_) round_.Close();
    return ends_well_;
  }

 private:
  bool Run(const WaitLimits& limits, const TakeExchanged& take) {
    const Clock::time_point begun = Clock::now();
    const auto yield = [&](const auto& ready) {
      if (limits.arrivals > limits.arrivals.zero()) YieldToPeers(*owner_.memory_, others_, ready);
    };
    if (!round_.AwaitEntered(begun + limits.arrivals, yield)) return false;
    owner_.memory_->header().waits_since = 0;
    const bool has_taken = Collect() && take(exchanged_) && round_.Take();
    if (!has_taken || !is_in_place_) return has_taken;
    return round_.AwaitTaken(mine_.at + limits.end, kLook, yield, [this] {
      return std::all_of(members_.begin(), members_.end(),
                         [](const Member& member) { return !member.lives || member.lives(); });
    });
  }

  // Returns whether the bytes can stay in place. All other ranks must be able to read this process's memory, and this
  // process must be able to read theirs.
  bool IsReadable() const {
    if (!mine_.in_place || (mine_.spans.size() != 1 && mine_.reads != ReadPattern::kSpanPerReader)) return false;
    const auto can_read = [this](const Member& member) {
      return &member == &members_[mine_.rank] || (member.reads && member.memory != nullptr);
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
      const FileHeader::GroupCell& place = CellOf(*members_[rank].file, mine_.call);
      const ExchangeCell cell = ReadOnce(place.cell);
      const bool in_place = cell.in_place == 1;
      if (cell.in_place > 1) return false;
      if (!(cell.call == mine_.call) || cell.fingerprint != mine_.fingerprint) return false;
      if (cell.bytes < 0 || (!in_place && cell.bytes > Transport::kMaxExchanged)) return false;
      if (cell.bytes != Measured()) return false;
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

  static StateWord& StateOf(const Exchange& mine, const std::vector<Member>& members) {
    return members[0].file->writable().rounds[RoundOf(mine.call)].state;
  }

  Exchanges& owner_;
  Cell* cell_ = nullptr;
  const Exchange mine_;
  const std::vector<Member> members_;
  std::vector<const MemoryFile*> others_;
  const uint64_t tag_;
  StateWord& state_;
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
  Cell& cell = cells_[RoundOf(mine.call)];
  std::lock_guard<std::mutex> lock(mutex_);
  if (cell.is_used) return nullptr;
  if (cell.state != nullptr && !ExchangeRound(*cell.state, cell.tag, cell.ranks).IsRead()) return nullptr;
  cell = use;
  return &cell;
}

void Exchanges::Release(Cell& cell) {
  std::lock_guard<std::mutex> lock(mutex_);
  cell.is_used = false;
}

}  // namespace jaxcomm::shm

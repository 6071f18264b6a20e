#include "cc/transport/shm/peer_transfers.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "cc/transport/shm/yield_to_peers.h"

namespace jaxcomm::shm {
namespace {

using Clock = Transfers::Clock;

TransferState::Limits LimitsOf(const TransferPart& mine, const ExchangeLimits& limits) {
  return {Clock::now() + limits.arrivals, mine.at + limits.end};
}

}  // namespace

// Waits for the other process as YieldToPeers does, unless the caller does not want to wait.
template <typename Ready>
void PeerTransfers::YieldFor(const ExchangeLimits& limits, const Ready& ready) const {
  if (limits.arrivals <= limits.arrivals.zero()) return;
  YieldToPeers(mine_, files_, ready);
  mine_.header().waits_since = 0;
}

class PeerTransfers::Offered final : public OfferedBytes {
 public:
  Offered(PeerTransfers& owner, const TransferPart& mine, const std::byte* bytes, int64_t count)
      : owner_(owner), mine_(mine), bytes_(bytes), count_(count), state_(owner.Sent(mine.call)) {}
  ~Offered() override {
    if (is_in_place_) state_.Withdraw(/*even_if_read=*/true);
  }

  // Offers the bytes unless another transfer uses the cell. Returns false if the bytes cannot be offered at all.
  bool Offer() {
    const TransferState::Reserved reserved = state_.Reserve();
    if (reserved == TransferState::Reserved::kClosed) return false;
    return reserved == TransferState::Reserved::kBusy || Describe();
  }

  bool Finish(const ExchangeLimits& limits) override {
    if (is_offered_ && !is_in_place_) return true;
    const TransferState::Limits until = LimitsOf(mine_, limits);
    const auto yield = [&](const auto& ready) { owner_.YieldFor(limits, ready); };
    while (!is_offered_) {
      state_.AwaitFree(until.arrival, yield);
      if (!Offer() || (!is_offered_ && Clock::now() >= until.arrival)) return false;
    }
    // AwaitTaken withdraws the bytes if the receiver does not take them.
    return !std::exchange(is_in_place_, false) || state_.AwaitTaken(until, yield, owner_.peer_.lives);
  }

 private:
  bool Describe() {
    const uint32_t buffer = count_ <= kTransferBufferBytes ? owner_.buffers_.Take(state_) : TransferCell::kInPlace;
    is_in_place_ = buffer == TransferCell::kInPlace;
    if (is_in_place_ && !owner_.peer_.reads()) return !state_.Withdraw(/*even_if_read=*/true);
    TransferCell& cell = owner_.mine_.channel(owner_.peer_.process).transfers[RoundOf(mine_.call)];
    cell.call = mine_.call;
    cell.fingerprint = mine_.fingerprint;
    cell.at = mine_.at.time_since_epoch();
    cell.bytes = count_;
    cell.buffer = buffer;
    cell.address = bytes_;
    if (!is_in_place_) std::memcpy(owner_.mine_.header().transfer_buffers[buffer], bytes_, static_cast<size_t>(count_));
    is_offered_ = true;
    state_.Offer();
    return true;
  }

  PeerTransfers& owner_;
  const TransferPart mine_;
  const std::byte* const bytes_;
  const int64_t count_;
  TransferState state_;
  bool is_offered_ = false, is_in_place_ = false;
};

TransferState PeerTransfers::Sent(const CallId& call) const {
  return {mine_.transfer_state(peer_.process, RoundOf(call)), TagOf(call)};
}

std::unique_ptr<OfferedBytes> PeerTransfers::Offer(const TransferPart& mine, const std::byte* bytes, int64_t count) {
  mine_.header().processor = sched_getcpu();
  if (count > kTransferBufferBytes && !peer_.reads()) {
    Decline(mine);
    return nullptr;
  }
  auto offered = std::make_unique<Offered>(*this, mine, bytes, count);
  return offered->Offer() ? std::move(offered) : nullptr;
}

void PeerTransfers::Decline(const TransferPart& mine) { Sent(mine.call).Close(); }

std::optional<Clock::time_point> PeerTransfers::Take(const TransferPart& mine, std::byte* to, int64_t count,
                                                     const ExchangeLimits& limits,
                                                     const std::function<bool()>& will_not_come) {
  mine_.header().processor = sched_getcpu();
  const size_t round = RoundOf(mine.call);
  TransferState state(peer_.file->transfer_state(self_, round), TagOf(mine.call));
  const auto yield = [&](const auto& ready) { YieldFor(limits, ready); };
  if (!state.AwaitOffer(LimitsOf(mine, limits), yield, will_not_come)) return std::nullopt;
  TransferCell cell;  // a copy, because the other process may write the cell at any time
  std::memcpy(&cell, &peer_.file->channel(self_).transfers[round], sizeof(cell));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const bool in_place = cell.buffer == TransferCell::kInPlace;
  const bool is_same = cell.call == mine.call && cell.fingerprint == mine.fingerprint && cell.bytes == count;
  bool is_taken = false;
  if (is_same && in_place && peer_.memory != nullptr) {
    is_taken = state.Begin() && peer_.memory->Read(cell.address, to, count) && state.Take();
  } else if (is_same && cell.buffer < kTransferBuffers && count <= kTransferBufferBytes) {
    std::memcpy(to, peer_.file->header().transfer_buffers[cell.buffer], static_cast<size_t>(count));
    is_taken = state.Take();
  }
  if (is_taken) return Clock::time_point(cell.at);
  // The sender of bytes in place still waits, and then uses messages. The sender of copied bytes is not involved.
  in_place ? state.Withdraw(/*even_if_read=*/true) : state.Take();
  return std::nullopt;
}

}  // namespace jaxcomm::shm

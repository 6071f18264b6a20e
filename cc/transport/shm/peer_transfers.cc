#include "cc/transport/shm/peer_transfers.h"

#include <sched.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/shm/yield_to_peers.h"

namespace jaxcomm::shm {
namespace {

using Clock = Transfers::Clock;

// See TransferState.
uint64_t TagOf(const CallId& call) {
  const uint64_t ranks = (call.communicator * 0x9e3779b97f4a7c15) >> 37, id = HashCallId()(call) & 0x7fffffff;
  return ranks << 37 | id << 6 | uint64_t{1} << 5;
}

TransferState::Limits LimitsOf(const TransferPart& mine, const WaitLimits& limits) {
  return {Clock::now() + limits.arrivals, mine.at + limits.end};
}

}  // namespace

// Waits as YieldToPeers does, unless the caller does not want to wait.
template <typename Ready>
void PeerTransfers::YieldFor(const WaitLimits& limits, const Ready& ready) const {
  if (limits.arrivals > limits.arrivals.zero()) YieldToPeers(mine_, files_, ready);
}

class PeerTransfers::Offered final : public OfferedBytes {
 public:
  Offered(PeerTransfers& owner, const TransferPart& mine, const std::byte* bytes, int64_t count)
      : owner_(owner), mine_(mine), bytes_(bytes), count_(count), state_(owner.Outgoing(mine.call)) {}
  ~Offered() override {
    if (is_in_place_) state_.Withdraw(/*while_read=*/true);
  }

  // Offers the bytes, if the cell is free. If an earlier transfer between the same ranks uses the cell, Finish waits
  // for that transfer. A wait for other ranks could last until they go on, and they may wait for this one, so Offer
  // then returns false.
  bool Offer() {
    const TransferState::Reserved reserved = state_.Reserve();
    return reserved == TransferState::Reserved::kYes ? Describe() : reserved == TransferState::Reserved::kBehind;
  }

  bool Finish(const WaitLimits& limits) override {
    if (is_offered_ && !is_in_place_) return true;
    const bool is_sent = Await(limits);
    owner_.mine_.header().waits_since = 0;
    return is_sent;
  }

 private:
  bool Await(const WaitLimits& limits) {
    const TransferState::Limits until = LimitsOf(mine_, limits);
    const auto yield = [&](const auto& ready) { owner_.YieldFor(limits, ready); };
    while (!is_offered_) {
      state_.AwaitFree(until.arrival, yield);
      if (!Offer() || (!is_offered_ && Clock::now() >= until.arrival)) return false;
    }
    // AwaitTaken withdraws the bytes if the receiver does not take them.
    return !std::exchange(is_in_place_, false) || state_.AwaitTaken(until, yield, owner_.peer_.lives);
  }

  bool Describe() {
    const uint32_t buffer = count_ <= kTransferBufferBytes ? owner_.buffers_.Claim(state_) : TransferCell::kInPlace;
    is_in_place_ = buffer == TransferCell::kInPlace;
    if (is_in_place_ && !owner_.peer_.reads()) {
      state_.Withdraw(/*while_read=*/true);
      return false;
    }
    TransferCell& cell = owner_.mine_.channel(owner_.peer_.process).transfers[RoundOf(mine_.call)];
    cell.call = mine_.call;
    cell.fingerprint = mine_.fingerprint;
    cell.at = mine_.at.time_since_epoch();
    cell.bytes = count_;
    cell.buffer = buffer;
    cell.address = bytes_;
    if (!is_in_place_) std::memcpy(owner_.mine_.header().transfer_buffers[buffer], bytes_, static_cast<size_t>(count_));
    is_offered_ = state_.Offer();
    return is_offered_;
  }

  PeerTransfers& owner_;
  const TransferPart mine_;
  const std::byte* const bytes_;
  const int64_t count_;
  TransferState state_;
  bool is_offered_ = false, is_in_place_ = false;
};

TransferState PeerTransfers::Outgoing(const CallId& call) const {
  return {mine_.transfer_state(peer_.process, RoundOf(call)), TagOf(call)};
}

TransferState PeerTransfers::Incoming(const CallId& call) const {
  return {peer_.file->transfer_state(self_, RoundOf(call)), TagOf(call)};
}

std::unique_ptr<OfferedBytes> PeerTransfers::Offer(const TransferPart& mine, const std::byte* bytes, int64_t count) {
  mine_.header().processor = sched_getcpu();
  if (count > kTransferBufferBytes && !peer_.reads()) {
    Outgoing(mine.call).Close();
    return nullptr;
  }
  auto offered = std::make_unique<Offered>(*this, mine, bytes, count);
  return offered->Offer() ? std::move(offered) : nullptr;
}

std::optional<Clock::time_point> PeerTransfers::Take(const TransferPart& mine, std::byte* to, int64_t count,
                                                     const WaitLimits& limits,
                                                     const std::function<bool()>& will_not_come) {
  mine_.header().processor = sched_getcpu();
  TransferState state = Incoming(mine.call);
  const auto yield = [&](const auto& ready) { YieldFor(limits, ready); };
  const bool is_offered = state.AwaitOffer(LimitsOf(mine, limits), yield, will_not_come);
  mine_.header().waits_since = 0;
  if (!is_offered) return std::nullopt;
  const TransferCell cell = ReadCell(mine.call);
  if (!(cell.call == mine.call)) return std::nullopt;  // another transfer with the same tag
  const bool is_same = cell.fingerprint == mine.fingerprint && cell.bytes == count;
  bool is_taken = false;
  if (is_same && cell.buffer == TransferCell::kInPlace) {
    is_taken =
        peer_.memory != nullptr && state.BeginRead() && peer_.memory->Read(cell.address, to, count) && state.Take();
  } else if (is_same && cell.buffer < kTransferBuffers && count <= kTransferBufferBytes) {
    std::memcpy(to, peer_.file->header().transfer_buffers[cell.buffer], static_cast<size_t>(count));
    is_taken = state.Take();
  }
  if (is_taken) return Clock::time_point(cell.at);
  Reject(cell, state);
  return std::nullopt;
}

void PeerTransfers::Forget(const CallId& call) {
  Outgoing(call).ClearClosed();
  TransferState incoming = Incoming(call);
  if (!incoming.ClearClosed() && !incoming.CloseReserved() && incoming.IsInUse()) Reject(ReadCell(call), incoming);
}

TransferCell PeerTransfers::ReadCell(const CallId& call) const {
  return ReadOnce(peer_.file->channel(self_).transfers[RoundOf(call)]);
}

// Ends a transfer whose bytes this process does not take. The sender of bytes in place still waits, and then uses
// messages, unless it has withdrawn them. The sender of copied bytes does not wait.
void PeerTransfers::Reject(const TransferCell& cell, TransferState& state) {
  if (cell.buffer == TransferCell::kInPlace) {
    if (!state.Withdraw(/*while_read=*/true)) state.ClearClosed();
  } else {
    state.Take();
  }
}

}  // namespace jaxcomm::shm

// Restores fenced rails.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"

namespace jaxcomm {

std::vector<Rails::Lost> Rails::lost() const {
  std::vector<Lost> found;
  Lock lock(mutex_);
  for (uint32_t process = 0; process < peers_.size(); ++process) {
    for (uint32_t rail = 0; peers_[process] && rail < listeners_.size(); ++rail) {
      const Lost lost{process, rail, peers_[process]->rails[rail].fences};
      if (IsLost(lost)) found.push_back(lost);
    }
  }
  return found;
}

bool Rails::IsLost(const Lost& lost) const {
  const Peer& peer = *peers_[lost.process];
  const Peer::Rail& rail = peer.rails[lost.rail];
  return peer.is_open() && rail.state == Peer::Rail::State::kFenced && rail.fences == lost.fences &&
         rail.their_fences == lost.fences && rail.calls == 0;
}

Status Rails::Restore(const Lost& lost, const std::function<Status()>& connect) {
  const auto is_peer = [this, &lost] {
    return lost.process < peers_.size() && peers_[lost.process] && lost.rail < listeners_.size();
  };
  {
    Lock lock(mutex_);
    if (!is_peer() || !IsLost(lost)) {
      return InvalidArgument("rail " + std::to_string(lost.rail) + " to process " + std::to_string(lost.process) +
                             " cannot be restored now");
    }
    Peer::Rail& rail = peers_[lost.process]->rails[lost.rail];
    rail.state = Peer::Rail::State::kOpening;
    rail.may_lose = false;
    ++rail.calls;
  }
  const Status status = connect();
  std::vector<MessageId> posted;
  bool has_ended = false;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[lost.process];
    Peer::Rail& rail = peer.rails[lost.rail];
    has_ended = rail.state != Peer::Rail::State::kOpening;
    if (!has_ended) rail.state = status.ok() ? Peer::Rail::State::kOpen : Peer::Rail::State::kFenced;
    if (!has_ended && status.ok()) {
      rail.history.Change(/*is_open=*/true, "", SilentRails::Clock::now());
      Report(peer, lost.rail, /*is_open=*/true);
      peer.Divide();
      const uint64_t bit = uint64_t{1} << lost.rail;
      for (auto& [id, message] : peer.posted) {
        if (message.bytes <= kMaxSmall) continue;
        message.rails |= bit;
        posted.push_back(id);
      }
    }
  }
  if (has_ended && status.ok()) rails_[lost.rail]->Fence(lost.process, Status(Code::kInternal, "it has failed again"));
  {
    Lock lock(mutex_);
    --peers_[lost.process]->rails[lost.rail].calls;
  }
  for (const MessageId& id : posted) PostOn(lost.process, id, {lost});
  if (!has_ended && status.ok()) SendPosted(lost);
  if (!status.ok()) {
    CheckEnd(lost.process);  // the last open rail may have failed meanwhile
  } else if (!has_ended) {
    SendFences(lost.process);  // again, because an earlier attempt may have found no open rail
  }
  Deliver(lost.process);
  return status;
}

}  // namespace jaxcomm

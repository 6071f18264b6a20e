// Rails that end: how the two sides of one agree that it is fenced, send over the others what it did not bring, and
// take it back.
//
// Each side counts how often it has fenced a rail, tells the other its counts, and fences what the other one has. Once
// their counts are equal neither reads the rail any more. Each then sends the numbered notices that the other lacks;
// behind them, which say all that it has received, it asks for the rest to be sent again.
#include <algorithm>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/inbox.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"

namespace jaxcomm {

void Rails::ReceiveNotice(uint32_t process, uint32_t rail, std::string_view bytes) {
  const char kind = bytes.empty() ? '\0' : bytes[0];
  if (kind == kAsk) return;
  if (kind == kPosted) return ReceivePosted(process, rail, bytes.substr(1));
  if (kind == kFences) return ReceiveFences(process, bytes.substr(1));
  if (kind != kBrought) return ReceiveNumbered(process, rail, bytes);
  std::vector<Due> due;
  {
    Lock lock(mutex_);
    Confirm(*peers_[process], bytes.substr(1), due);
  }
  CallBack(std::move(due));
}

void Rails::ReceiveNumbered(uint32_t process, uint32_t rail, std::string_view bytes) {
  std::vector<Due> due;
  std::optional<std::string> again;
  NumberedNotices::Bytes received;
  std::optional<uint32_t> first;
  Status error, wrong;  // of the notice, or of a message
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (peer.told) return;  // nothing comes after that, though a fenced rail may still run what was due
    error = peer.notices.Take(bytes, [&](char kind, std::string_view text) {
      switch (kind) {
        case kMessage:
          if (Status status = peer.Take(text, cancelled_, due); !status.ok()) wrong = std::move(status);
          break;
        case kReceived:
          Confirm(peer, text, due);
          break;
        case kAgain:
          again = text;
          break;
        default:
          peer.deliveries.push_back([this, process, text = std::string(text)] { events_->OnNotice(process, text); });
      }
    });
    first = peer.FirstRail();
    const int64_t carried = peer.notices.TakeCarried();
    if (carried > 0) peer.rails[first.value_or(rail)].Carry(carried);
    if (peer.notices.unconfirmed() >= Peer::kMaxReceived) received = peer.TakeReceived();
  }
  if (received) SendNotice(process, first, *received);
  if (again) SendAgain(process, *again);
  CallBack(std::move(due));
  Deliver(process);
  if (!error.ok()) End(process, rail, CutOff(process, error), /*left=*/false);
  if (!wrong.ok()) EndAll(process, CutOff(process, wrong));
}

// At once, so that nothing goes to it over one that is still open, and none is restored meanwhile.
void Rails::EndAll(uint32_t process, const Status& why) {
  std::vector<uint32_t> ended;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.gone.ok()) return;
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) {
      Peer::Rail& it = peer.rails[rail];
      if (!it.is_used()) continue;
      it.BeginFence(why);
      ++it.fences;
      ended.push_back(rail);
    }
    peer.gone = peer.end = why;
    peer.is_left = false;
  }
  Fence(process, ended, why);
}

void Rails::End(uint32_t process, uint32_t rail, const Status& why, bool left) {
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    Peer::Rail& it = peer.rails[rail];
    if (!it.is_used()) return;
    if (left) {
      it.state = Peer::State::kLeft;
    } else {
      it.BeginFence(why);
      ++it.fences;
    }
    peer.end = why;
    peer.is_left = left;
    peer.Divide();
  }
  if (left) return CheckGone(process);
  Fence(process, {rail}, why);
  SendFences(process);
}

// These are being fenced.
void Rails::Fence(uint32_t process, const std::vector<uint32_t>& rails, const Status& why) {
  for (const uint32_t rail : rails) rails_[rail]->Fence(process, why);
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    uint64_t fenced = 0;
    for (const uint32_t rail : rails) {
      peer.rails[rail].state = Peer::State::kFenced;
      fenced |= uint64_t{1} << rail;
    }
    for (auto& [id, posted] : peer.posted) posted.on &= ~fenced;
  }
  CheckGone(process);
}

// The other side may send again what went over them: while one is being fenced, it is not told of any.
void Rails::SendFences(uint32_t process) {
  std::string bytes(1, kFences);
  std::optional<uint32_t> first;
  {
    Lock lock(mutex_);
    const Peer& peer = *peers_[process];
    const auto is_fencing = [](const Peer::Rail& rail) { return rail.state == Peer::State::kFencing; };
    if (!peer.gone.ok() || std::any_of(peer.rails.begin(), peer.rails.end(), is_fencing)) return;
    AppendNumber<uint64_t>(bytes, peer.notices.taken());
    for (const Peer::Rail& rail : peer.rails) AppendNumber<uint32_t>(bytes, rail.fences);
    first = peer.FirstRail();
  }
  SendNotice(process, first, bytes);
  Flush();
  AskAgain(process);
}

void Rails::ReceiveFences(uint32_t process, std::string_view bytes) {
  std::vector<uint32_t> fenced;
  bool counted = false;
  const Status why(Code::kInternal, "process " + std::to_string(process) + " has lost a rail to this one");
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    NumberReader in(bytes);
    peer.their_taken = std::max(peer.their_taken, in.Get<uint64_t>());
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) {
      Peer::Rail& it = peer.rails[rail];
      it.their_fences = std::max(it.their_fences, in.Get<uint32_t>());
      if (it.their_fences <= it.fences) continue;
      it.fences = it.their_fences;
      counted = true;  // also where it was fenced already: the other side has to hear that both agree
      if (!it.is_used()) continue;
      it.BeginFence(why);
      fenced.push_back(rail);
    }
    if (!fenced.empty()) {
      peer.end = why;
      peer.is_left = false;
    }
    peer.Divide();
  }
  if (!counted) return AskAgain(process);
  if (!fenced.empty()) Fence(process, fenced, why);
  SendFences(process);
}

void Rails::AskAgain(uint32_t process) {
  std::vector<NumberedNotices::Bytes> notices;
  std::optional<uint32_t> first;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    first = peer.FirstRail();
    if (!peer.gone.ok() || !peer.Agrees() || !first) return;
    peer.TakeReceived();
    std::string fences(NumberedNotices::kHeaderBytes, '\0');
    for (const Peer::Rail& rail : peer.rails) AppendNumber<uint32_t>(fences, rail.fences);
    peer.notices.Add(kAgain, std::move(fences));
    notices = peer.notices.After(peer.their_taken);
  }
  for (const NumberedNotices::Bytes& notice : notices) SendNotice(process, first, *notice);
  Flush();
}

// What went over rails before the other side fenced them so often, and it does not have. What it has of a rail that
// only this side has fenced since is not known yet.
void Rails::SendAgain(uint32_t process, std::string_view fences) {
  std::vector<std::pair<MessageId, Peer::Unconfirmed>> lost;
  std::vector<std::optional<uint32_t>> rails;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.FirstRail()) return;
    NumberReader in(fences);
    std::vector<uint32_t> fenced;
    for (size_t rail = 0; rail < peer.rails.size(); ++rail) fenced.push_back(in.Get<uint32_t>());
    for (const auto& [id, message] : peer.unconfirmed) {
      if (message.fences < fenced[message.rail]) lost.emplace_back(id, message);
    }
    for (const auto& [id, message] : lost) {
      peer.Release(id, message);
      rails.push_back(peer.Keep(id, message.message, message.bytes));
    }
  }
  for (size_t i = 0; i < lost.size(); ++i) {
    if (rails[i]) SendOn(*rails[i], {{process, lost[i].first}}, lost[i].second.message);
  }
  Flush();
}

// Once no rail is left, for the reason of the one that ended last: where that one failed, what it had to carry has not
// come, whatever the process has said on others.
void Rails::CheckGone(uint32_t process) {
  std::vector<Due> due;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    const auto may_carry = [](const Peer::Rail& rail) { return rail.is_used() || rail.state == Peer::State::kFencing; };
    if (peer.told || std::any_of(peer.rails.begin(), peer.rails.end(), may_carry)) return;
    peer.told = true;
    if (peer.gone.ok()) peer.gone = peer.end;
    const Status gone = peer.gone;
    for (auto at = peer.posted.begin(); at != peer.posted.end();) {
      if (at->second.on == 0) {
        due.push_back({at->first.call, [done = std::move(at->second.done), gone] { done(gone, nullptr); }});
      }
      at = at->second.on == 0 ? peer.posted.erase(at) : std::next(at);
    }
    for (auto& [id, message] : peer.unconfirmed) {
      message.message->status = gone;
      EndReceiver(message.message, due);
    }
    peer.unconfirmed.clear();
    peer.deliveries.push_back([this, process, gone, left = peer.is_left] {
      left ? events_->OnPeerLeft(process, gone) : events_->OnPeerGone(process, gone);
    });
  }
  Deliver(process);
  CallBack(std::move(due));
}

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
  return peer.gone.ok() && rail.state == Peer::State::kFenced && rail.fences == lost.fences &&
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
                             " is not to be restored now");
    }
    Peer::Rail& rail = peers_[lost.process]->rails[lost.rail];
    rail.state = Peer::State::kOpening;
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
    has_ended = rail.state != Peer::State::kOpening;
    if (!has_ended) rail.state = status.ok() ? Peer::State::kOpen : Peer::State::kFenced;
    if (!has_ended && status.ok()) {
      rail.history.Change(/*is_open=*/true, "", Silence::Clock::now());
      peer.Divide();
      const uint64_t bit = uint64_t{1} << lost.rail;
      for (auto& [id, message] : peer.posted) {
        if (message.bytes <= kMaxSmall) continue;
        message.on |= bit;
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
    CheckGone(lost.process);  // its last rail may have failed meanwhile
  } else if (!has_ended) {
    SendFences(lost.process);  // none may have been open to do so
  }
  return status;
}

}  // namespace jaxcomm

// Fences rails on both sides. Then resends the messages that did not arrive, over the rails that are still open.
//
// Each side counts its fences of a rail, sends the counts to the other side, and fences the rails that the other side
// has fenced. Once the counts of both sides are equal, neither side reads a fenced rail any more. Each side then sends
// the numbered notices that the other side lacks, and a new notice that confirms all received messages. The last of
// these notices asks the other side to resend the messages that are still unconfirmed.
#include <algorithm>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"

namespace jaxcomm {

// Ends all rails to the process in one step, so that no rail is used or restored in between.
void Rails::EndAll(uint32_t process, const Status& why) {
  std::vector<uint32_t> ended;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.is_open()) return;
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) {
      Peer::Rail& ending = peer.rails[rail];
      if (!ending.is_used()) continue;
      ending.BeginFence(why);
      ++ending.fences;
      ended.push_back(rail);
    }
    peer.state = Peer::State::kFailing;
    peer.why = why;
  }
  Fence(process, ended, why);
}

void Rails::End(uint32_t process, uint32_t rail, const Status& why, bool left) {
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    Peer::Rail& ending = peer.rails[rail];
    if (!ending.is_used()) return;
    if (left) {
      ending.state = Peer::Rail::State::kLeft;
    } else {
      ending.BeginFence(why);
      ++ending.fences;
      Report(peer, rail, /*is_open=*/false);
    }
    peer.state = left ? Peer::State::kLeaving : Peer::State::kOpen;
    peer.why = why;
    peer.Divide();
  }
  if (left) return CheckEnd(process);
  Fence(process, {rail}, why);
  SendFences(process);
  Deliver(process);
  Suspect(rail);
}

// Fences rails whose state is kFencing.
void Rails::Fence(uint32_t process, const std::vector<uint32_t>& rails, const Status& why) {
  for (const uint32_t rail : rails) rails_[rail]->Fence(process, why);
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    uint64_t fenced = 0;
    for (const uint32_t rail : rails) {
      peer.rails[rail].state = Peer::Rail::State::kFenced;
      fenced |= uint64_t{1} << rail;
    }
    for (auto& [id, posted] : peer.posted) posted.rails &= ~fenced;
  }
  CheckEnd(process);
}

// Sends no counts while a rail is being fenced, because the counts allow the other side to resend messages.
void Rails::SendFences(uint32_t process) {
  std::string bytes(1, kFences);
  std::optional<uint32_t> first;
  {
    Lock lock(mutex_);
    const Peer& peer = *peers_[process];
    const auto is_fencing = [](const Peer::Rail& rail) { return rail.state == Peer::Rail::State::kFencing; };
    if (!peer.is_open() || std::any_of(peer.rails.begin(), peer.rails.end(), is_fencing)) return;
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
  bool has_counted = false;
  const Status why(Code::kInternal, "process " + std::to_string(process) + " has lost a rail to this one");
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    NumberReader in(bytes);
    peer.their_taken = std::max(peer.their_taken, in.Get<uint64_t>());
    for (uint32_t rail = 0; rail < peer.rails.size(); ++rail) {
      Peer::Rail& counted = peer.rails[rail];
      counted.their_fences = std::max(counted.their_fences, in.Get<uint32_t>());
      if (counted.their_fences <= counted.fences) continue;
      counted.fences = counted.their_fences;
      has_counted = true;  // even if the rail was already fenced, because the other side must learn the new count
      if (!counted.is_used()) continue;
      counted.BeginFence(why);
      fenced.push_back(rail);
      Report(peer, rail, /*is_open=*/false);
    }
    if (!fenced.empty()) {
      peer.state = Peer::State::kOpen;
      peer.why = why;
    }
    peer.Divide();
  }
  if (!has_counted) return AskAgain(process);
  if (!fenced.empty()) Fence(process, fenced, why);
  SendFences(process);
  Deliver(process);
  for (const uint32_t rail : fenced) Suspect(rail);
}

void Rails::AskAgain(uint32_t process) {
  std::vector<NumberedNotices::Bytes> notices;
  std::optional<uint32_t> first;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    first = peer.FirstRail();
    if (!peer.is_open() || !peer.Agrees() || !first) return;
    peer.TakeReceived();
    std::string fences(NumberedNotices::kHeaderBytes, '\0');
    for (const Peer::Rail& rail : peer.rails) AppendNumber<uint32_t>(fences, rail.fences);
    peer.notices.Add(kAgain, std::move(fences));
    notices = peer.notices.After(peer.their_taken);
  }
  for (const NumberedNotices::Bytes& notice : notices) SendNotice(process, first, *notice);
  Flush();
}

// Resends the unconfirmed messages that the other side asked for. `fences`: the number of fences of each rail when the
// other side asked. A message is resent if it was sent over its rail before the last of these fences. Later messages
// are not resent, even if this side has fenced the rail again, because the other side may still confirm them.
void Rails::SendAgain(uint32_t process, std::string_view fences) {
  std::vector<std::pair<Receiver, Peer::Unconfirmed>> lost;
  std::vector<std::optional<uint32_t>> rails;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.FirstRail()) return;
    NumberReader in(fences);
    std::vector<uint32_t> fenced;
    for (size_t rail = 0; rail < peer.rails.size(); ++rail) fenced.push_back(in.Get<uint32_t>());
    for (const auto& [id, message] : peer.unconfirmed) {
      if (message.fences < fenced[message.rail]) lost.push_back({{process, id, message.priority}, message});
    }
    for (const auto& [receiver, message] : lost) {
      peer.Release(receiver.id, message);
      rails.push_back(peer.Keep(receiver, message.message, message.bytes));
    }
  }
  for (size_t i = 0; i < lost.size(); ++i) {
    if (rails[i]) SendOn(*rails[i], {lost[i].first}, lost[i].second.message);
  }
  Flush();
}

// Reports the end of a process after all its rails have ended. The reported reason says why the last of these rails
// ended. If the last rail failed, its messages are lost: the process then counts as failed, even if it left on all
// other rails.
void Rails::CheckEnd(uint32_t process) {
  std::vector<Due> due;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    const auto may_carry = [](const Peer::Rail& rail) {
      return rail.is_used() || rail.state == Peer::Rail::State::kFencing;
    };
    if (peer.has_ended() || std::any_of(peer.rails.begin(), peer.rails.end(), may_carry)) return;
    const bool has_left = peer.state == Peer::State::kLeaving;
    peer.state = has_left ? Peer::State::kLeft : Peer::State::kFailed;
    const Status gone = peer.gone();
    peer.posted.TakeIf([](const Peer::PostedOn& posted) { return posted.rails == 0; },
                       [&](const MessageId& id, Peer::PostedOn posted) {
                         due.push_back({id.call, [done = std::move(posted.done), gone] { done(gone, nullptr); }});
                       });
    peer.unconfirmed.TakeIf([](const Peer::Unconfirmed&) { return true; },
                            [&](const MessageId&, const Peer::Unconfirmed& message) {
                              message.message->status = gone;
                              EndReceiver(message.message, due);
                            });
    peer.deliveries.push_back([this, process, gone, has_left] {
      has_left ? events_->OnPeerLeft(process, gone) : events_->OnPeerGone(process, gone);
    });
  }
  Deliver(process);
  CallBack(std::move(due));
}

}  // namespace jaxcomm

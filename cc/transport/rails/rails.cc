#include "cc/transport/rails/rails.h"

#include <algorithm>
#include <string>

#include "cc/base/little_endian.h"
#include "cc/transport/inbox.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

Rails::Rails(uint32_t processes, uint32_t rails, Events* events)
    : events_(events), listeners_(rails), peers_(processes) {
  for (uint32_t rail = 0; rail < rails; ++rail) {
    listeners_[rail].owner = this;
    listeners_[rail].rail = rail;
  }
}

Rails::~Rails() { Stop(); }

Status Rails::AddProcess(uint32_t process, const std::vector<RailTable::Range>& shares,
                         const std::vector<uint32_t>& connected, const std::vector<uint32_t>& down) {
  Result<RailTable> table = RailTable::Make(shares);
  if (!table.ok()) return table.status();
  const auto is_in = [](const std::vector<uint32_t>& rails, uint32_t rail) {
    return std::find(rails.begin(), rails.end(), rail) != rails.end();
  };
  if (connected.empty()) return InvalidArgument("no rail leads to process " + std::to_string(process));
  for (const uint32_t rail : table.value().rails()) {
    if (!is_in(connected, rail) && !is_in(down, rail)) {
      return InvalidArgument("process " + std::to_string(process) + " has a share on rail " + std::to_string(rail) +
                             ", which does not lead to it");
    }
  }
  auto peer = std::make_unique<Peer>(static_cast<uint32_t>(listeners_.size()), shares, std::move(table.value()));
  for (const uint32_t rail : connected) peer->rails[rail].state = Peer::State::kOpen;
  for (const uint32_t rail : down) {
    Peer::Rail& it = peer->rails[rail];
    it.BeginFence(Status(Code::kInternal, "it was down when the processes were connected"));
    it.state = Peer::State::kFenced;
    it.fences = it.their_fences = 1;
  }
  if (!down.empty()) peer->Divide();
  const uint32_t first = *peer->FirstRail();
  have_one_first_ = have_one_first_ && first == first_.value_or(first);
  first_ = first;
  std::lock_guard<std::mutex> lock(mutex_);
  peers_[process] = std::move(peer);
  return Status();
}

void Rails::Notify(uint32_t process, std::string_view notice) {
  std::string text(NumberedNotices::kHeaderBytes, '\0');
  text += notice;
  NumberedNotices::Bytes bytes;
  std::optional<uint32_t> rail;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (!peer.gone.ok()) return;
    bytes = peer.notices.Add(kNotice, std::move(text));
    rail = peer.FirstRail();
  }
  SendNotice(process, rail, *bytes);
}

// None is open: it is kept, and goes over the one that will be.
void Rails::SendNotice(uint32_t process, std::optional<uint32_t> rail, const std::string& bytes) {
  if (!rail) return;
  rails_[*rail]->Notify(process, bytes);
  Wake();
}

void Rails::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) {
  PostAs(process, id, std::move(spans), accepts_view, std::move(done), nullptr);
}

void Rails::PostAs(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done,
                   std::shared_ptr<LossIn> loss) {
  const Result<int64_t> bytes = CheckSpans(spans);
  if (!bytes.ok()) return done(bytes.status(), nullptr);
  const bool is_small = bytes.value() <= kMaxSmall;
  Status error;
  std::vector<Lost> rails;
  {
    Lock lock(mutex_);
    if (cancelled_.Contains(id.call)) return;
    Peer& peer = *peers_[process];
    const Result<bool> is_here = peer.TakeEarly(id, spans, bytes.value());
    if (!is_here.ok() || is_here.value()) {
      lock.unlock();
      if (is_here.ok()) return done(Status(), nullptr);
      const Status why = CutOff(process, is_here.status());
      EndAll(process, why);
      return CallBack(id.call, done, why);
    }
    uint64_t on = 0;
    for (uint32_t rail = 0; rail < peer.rails.size() && !is_small; ++rail) {
      const Peer::Rail& it = peer.rails[rail];
      if (it.state != Peer::State::kOpen && it.state != Peer::State::kLeft) continue;
      on |= uint64_t{1} << rail;
      rails.push_back({process, rail, it.fences});
    }
    if (on == 0) error = peer.gone;
    if (error.ok() && peer.posted.count(id) > 0) error = InvalidArgument("a message has been posted twice");
    if (error.ok()) {
      peer.posted.emplace(
          id, Peer::Posted{std::move(spans), accepts_view, std::move(done), bytes.value(), on, std::move(loss)});
    }
  }
  if (!error.ok()) return done(error, nullptr);
  if (!is_small) PostOn(process, id, rails);
}

// One of the rails may bring it before it has been posted on all. On one that is fenced meanwhile it is not posted:
// were that rail restored, it would be posted again.
void Rails::PostOn(uint32_t process, const MessageId& id, const std::vector<Lost>& rails) {
  const auto is_posted = [&] { return peers_[process]->posted.count(id) > 0; };
  Lock lock(mutex_);
  for (const Lost& it : rails) {
    if (!is_posted()) break;
    if (peers_[process]->rails[it.rail].fences != it.fences) continue;
    const Peer::Posted& posted = peers_[process]->posted.at(id);
    const std::vector<Span> spans = posted.spans;
    const bool accepts_view = posted.accepts_view;
    const std::shared_ptr<LossIn> loss = posted.loss;
    ++peers_[process]->rails[it.rail].calls;
    lock.unlock();
    if (loss) {
      rails_[it.rail]->PostLossy(
          process, id, spans, loss->may_lose,
          [this, id, it](const Status& status, std::shared_ptr<const std::byte> view,
                         const std::vector<ByteRange>& lost) { Receive(it, id, status, std::move(view), lost); });
    } else {
      rails_[it.rail]->Post(process, id, spans, accepts_view,
                            [this, id, it](const Status& status, std::shared_ptr<const std::byte> view) {
                              Receive(it, id, status, std::move(view), {});
                            });
    }
    lock.lock();
    --peers_[process]->rails[it.rail].calls;
  }
  if (is_posted()) return;
  lock.unlock();
  for (const Lost& it : rails) rails_[it.rail]->Withdraw(process, id);
}

// A rail has brought it, or will not.
void Rails::Receive(const Lost& by, const MessageId& id, const Status& status, std::shared_ptr<const std::byte> view,
                    const std::vector<ByteRange>& lost) {
  const auto [process, rail, fences] = by;
  Received done;
  Status end = status;
  uint64_t others = 0;
  NumberedNotices::Bytes received;
  std::optional<uint32_t> first;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    const auto at = peer.posted.find(id);
    if (peer.rails[rail].fences != fences || at == peer.posted.end()) return;  // what a fenced rail brought comes again
    Peer::Posted& posted = at->second;
    posted.on &= ~(uint64_t{1} << rail);
    if (!status.ok()) {
      if (posted.on != 0 || peer.gone.ok()) return;
      end = peer.gone;
    } else {
      if (posted.loss) posted.loss->lost = lost;
      others = posted.on;
      peer.received.push_back(id);
      if (peer.received.size() >= Peer::kMaxReceived) {
        received = peer.TakeReceived();
        first = peer.FirstRail();
      }
    }
    done = std::move(posted.done);
    peer.posted.erase(at);
  }
  for (uint32_t other = 0; other < rails_.size(); ++other) {
    if (others >> other & 1) rails_[other]->Withdraw(process, id);
  }
  if (received) SendNotice(process, first, *received);
  if (end.ok()) {  // over the same rail, whose rate it tells, and where nothing of another one is before it
    std::string brought(1, kBrought);
    AppendMessageId(brought, id);
    SendNotice(process, rail, brought);
  }
  CallBack(id.call, done, end, std::move(view));
  if (end.ok()) rails_[rail]->Flush();
}

// Small ones are posted on no rail, so none can say that the two sides disagree about what is small.
void Rails::ReceiveEarly(uint32_t process, const MessageId& id, int64_t bytes) {
  Status wrong;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (peer.gone.ok() && !cancelled_.Contains(id.call)) wrong = peer.NoteEarly(id, bytes);
  }
  if (!wrong.ok()) EndAll(process, CutOff(process, wrong));
}

void Rails::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  SendAs(to, std::move(spans), std::move(done), nullptr);
}

void Rails::SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done,
                   std::unique_ptr<LossOut> loss) {
  const Result<int64_t> bytes = CheckSpans(spans);
  if (!bytes.ok()) return done(bytes.status());
  if (bytes.value() <= kMaxSmall) return SendSmall(to, spans, bytes.value(), done);
  const auto message = std::make_shared<Outgoing>();
  if (!to.empty()) message->call = to[0].id.call;
  message->spans = std::move(spans);
  message->loss = std::move(loss);
  Status status;
  std::vector<std::vector<Receiver>> parts(rails_.size());
  {
    Lock lock(mutex_);
    if (!to.empty() && cancelled_.Contains(to[0].id.call)) return;
    const auto is_here = [this](const Receiver& receiver) { return peers_[receiver.process]->gone.ok(); };
    if (std::any_of(to.begin(), to.end(), is_here)) message->done = std::exchange(done, nullptr);
    for (const Receiver& receiver : to) {
      Peer& peer = *peers_[receiver.process];
      if (!peer.gone.ok()) {
        status = message->status = peer.gone;
        continue;
      }
      ++message->receivers;
      if (const auto rail = peer.Keep(receiver.id, message, bytes.value())) parts[*rail].push_back(receiver);
    }
  }
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    if (!parts[rail].empty()) SendOn(rail, parts[rail], message);
  }
  if (done) CallBack({{message->call, [done = std::move(done), status] { done(status); }}});
}

void Rails::SendSmall(const std::vector<Receiver>& to, const std::vector<ConstSpan>& spans, int64_t bytes,
                      const Sent& done) {
  const auto text_for = [&](const Receiver& receiver) {
    std::string text;
    text.reserve(NumberedNotices::kHeaderBytes + kMessageIdBytes + static_cast<size_t>(bytes));
    text.resize(NumberedNotices::kHeaderBytes);
    AppendMessageId(text, receiver.id);
    for (const ConstSpan& span : spans) {
      text.append(reinterpret_cast<const char*>(span.data), static_cast<size_t>(span.bytes));
    }
    return text;
  };
  Status status;
  std::vector<std::pair<std::optional<uint32_t>, NumberedNotices::Bytes>> notices(to.size());
  {
    Lock lock(mutex_);
    if (!to.empty() && cancelled_.Contains(to[0].id.call)) return;
    for (size_t i = 0; i < to.size(); ++i) {
      Peer& peer = *peers_[to[i].process];
      if (peer.gone.ok()) {
        notices[i] = {peer.FirstRail(), peer.notices.Add(kMessage, text_for(to[i]), bytes)};
      } else {
        status = peer.gone;
      }
    }
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (notices[i].second) SendNotice(to[i].process, notices[i].first, *notices[i].second);
  }
  if (to.empty()) return done(status);
  CallBack({{to[0].id.call, [&done, &status] { done(status); }}});
}

void Rails::SendOn(uint32_t rail, const std::vector<Receiver>& to, const std::shared_ptr<Outgoing>& message) {
  // Where it fails, the rail does.
  Sent done = [this, message, receivers = to.size()](const Status&) { EndReading(message, receivers); };
  if (message->loss && MayLose(to[0].process, rail)) {
    rails_[rail]->SendLossy(to[0], message->spans, message->loss->important, message->loss->may_lose, std::move(done));
  } else {
    rails_[rail]->Send(to, message->spans, std::move(done));
  }
  Wake();
  Lock lock(mutex_);
  for (const Receiver& receiver : to) --peers_[receiver.process]->rails[rail].calls;
}

void Rails::EndReading(const std::shared_ptr<Outgoing>& message, size_t receivers) {
  std::vector<Due> due;
  {
    Lock lock(mutex_);
    message->readers -= receivers;
    Sent done = message->TakeDone();
    if (!done) return;
    const auto [first, last] = only_read_.equal_range(message->call);
    only_read_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == message; }));
    due.push_back({message->call, [done = std::move(done), status = message->status] { done(status); }});
  }
  CallBack(std::move(due));
}

// One receiver of the message is done.
void Rails::EndReceiver(const std::shared_ptr<Outgoing>& message, std::vector<Due>& due) {
  if (--message->receivers > 0 || !message->done) return;
  if (Sent done = message->TakeDone()) {
    due.push_back({message->call, [done = std::move(done), status = message->status] { done(status); }});
  } else {
    only_read_.emplace(message->call, message);
  }
}

// The process has these messages.
void Rails::Confirm(Peer& peer, std::string_view ids, std::vector<Due>& due) {
  NumberReader in(ids);
  while (const std::byte* const id = in.Take(kMessageIdBytes)) {
    const auto found = peer.unconfirmed.find(DecodeMessageId(id));
    if (found == peer.unconfirmed.end()) continue;
    peer.Release(found->first, found->second);
    peer.rails[found->second.rail].Carry(found->second.bytes);
    EndReceiver(found->second.message, due);
    peer.unconfirmed.erase(found);
  }
}

// Each asks anew whether its call is over: what ran before it may have cancelled it, as may another thread.
void Rails::CallBack(std::vector<Due> due) {
  for (const Due& it : due) {
    Lock lock(mutex_);
    if (cancelled_.Contains(it.call)) continue;
    lock.unlock();
    it.run();
  }
}

void Rails::CallBack(const CallId& call, const Received& done, const Status& status,
                     std::shared_ptr<const std::byte> view) {
  {
    Lock lock(mutex_);
    if (cancelled_.Contains(call)) return;
  }
  done(status, std::move(view));
}

void Rails::Flush() {
  for (Transport* const rail : rails_) rail->Flush();
}

void Rails::Cancel(const CallId& call) {
  std::vector<Received> received;  // what they own may call us when it is released
  std::vector<Sent> sent;
  {
    Lock lock(mutex_);
    cancelled_.Add(call);
    for (const std::unique_ptr<Peer>& peer : peers_) {
      if (peer) peer->Cancel(call, received, sent);
    }
    const auto [first, last] = only_read_.equal_range(call);
    for (auto at = first; at != last; ++at) sent.push_back(std::exchange(at->second->done, nullptr));
    only_read_.erase(first, last);
  }
  for (Transport* const rail : rails_) rail->Cancel(call);
}

// Notices, and at last that the process is gone, in order, whatever threads bring them.
void Rails::Deliver(uint32_t process) {
  Lock lock(mutex_);
  Peer& peer = *peers_[process];
  if (std::exchange(peer.delivering, true)) return;
  while (!peer.deliveries.empty()) {
    const std::function<void()> run = std::move(peer.deliveries.front());
    peer.deliveries.pop_front();
    lock.unlock();
    run();
    lock.lock();
  }
  peer.delivering = false;
}

void Rails::Expect() {
  if (helped()) rails_[*first_]->Expect();
}

void Rails::EndExpecting() {
  if (helped()) rails_[*first_]->EndExpecting();
}

void Rails::Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) {
  if (!helped()) return Flush();
  const auto flush_others = [this] {
    for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
      if (rail != *first_) rails_[rail]->Flush();
    }
  };
  flush_others();  // the first rail asks nothing while its own thread serves it
  rails_[*first_]->Help(limit, yields, [&] {
    const bool is_over = over();
    flush_others();
    return is_over;
  });
}

}  // namespace jaxcomm

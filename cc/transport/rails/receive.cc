// Messages and notices from other processes.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/inbox.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

void Rails::Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) {
  PostAs(id, {process, std::move(spans), 0, accepts_view, std::move(done)});
}

void Rails::PostAs(const MessageId& id, Posted posted) {
  const Result<int64_t> bytes = CheckSpans(posted.spans);
  if (!bytes.ok()) return posted.done(bytes.status(), nullptr);
  posted.bytes = bytes.value();
  const uint32_t process = posted.process;
  const bool is_small = posted.bytes <= kMaxSmall;
  Status error;
  std::vector<Lost> rails;
  {
    Lock lock(mutex_);
    if (cancelled_.Contains(id.call)) return;
    Peer& peer = *peers_[process];
    const Result<bool> is_here = peer.TakeEarly(id, posted);
    if (!is_here.ok() || is_here.value()) {
      lock.unlock();
      if (is_here.ok()) return posted.done(Status(), nullptr);
      const Status why = CutOff(process, is_here.status());
      EndAll(process, why);
      return CallBack(id.call, posted.done, why);
    }
    uint64_t on = 0;
    for (uint32_t rail = 0; rail < peer.rails.size() && !is_small; ++rail) {
      const Peer::Rail& used = peer.rails[rail];
      if (used.state != Peer::Rail::State::kOpen && used.state != Peer::Rail::State::kLeft) continue;
      on |= uint64_t{1} << rail;
      rails.push_back({process, rail, used.fences});
    }
    if (on == 0) error = peer.gone();
    if (error.ok() && peer.posted.Find(id)) error = InvalidArgument("a message has been posted twice");
    if (error.ok()) peer.posted.Add(id, {std::move(posted), on});
  }
  if (!error.ok()) return posted.done(error, nullptr);
  if (!is_small) PostOn(process, id, rails);
}

// Posts the message on each rail. If the message arrives before it is posted on all rails, stops and withdraws the
// message from all rails. Skips rails that are fenced meanwhile, because Restore posts the message on them.
void Rails::PostOn(uint32_t process, const MessageId& id, const std::vector<Lost>& rails) {
  Lock lock(mutex_);
  Peer& peer = *peers_[process];
  for (const Lost& rail : rails) {
    const Posted* const posted = peer.posted.Find(id);
    if (posted == nullptr) break;
    if (peer.rails[rail.rail].fences != rail.fences) continue;
    const std::vector<Span> spans = posted->spans;
    const bool accepts_view = posted->accepts_view;
    const std::shared_ptr<Posted::Loss> loss = posted->loss;
    ++peer.rails[rail.rail].calls;
    lock.unlock();
    if (loss) {
      jaxcomm::PostLossy(
          *rails_[rail.rail], process, id, spans, loss->limit,
          [this, id, rail](const Status& status, std::shared_ptr<const std::byte> view,
                           const std::vector<ByteRange>& lost) { Receive(rail, id, status, std::move(view), lost); });
    } else {
      rails_[rail.rail]->Post(process, id, spans, accepts_view,
                              [this, id, rail](const Status& status, std::shared_ptr<const std::byte> view) {
                                Receive(rail, id, status, std::move(view), {});
                              });
    }
    lock.lock();
    --peer.rails[rail.rail].calls;
  }
  if (peer.posted.Find(id)) return;
  lock.unlock();
  for (const Lost& rail : rails) rails_[rail.rail]->Withdraw(process, id);
}

// Runs when a message has arrived on the rail `by`, or when its Post on that rail has failed.
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
    Peer::PostedOn* const posted = peer.posted.Find(id);
    if (peer.rails[rail].fences != fences || !posted) return;  // messages of a fenced rail are resent
    posted->rails &= ~(uint64_t{1} << rail);
    if (!status.ok()) {
      if (posted->rails != 0 || peer.is_open()) return;
      end = peer.gone();
    } else {
      if (posted->loss) posted->loss->lost = lost;
      others = posted->rails;
      peer.received.push_back(id);
      if (peer.received.size() >= Peer::kMaxReceived) {
        received = peer.TakeReceived();
        first = peer.FirstRail();
      }
    }
    done = std::move(peer.posted.Take(id)->done);
  }
  for (uint32_t other = 0; other < rails_.size(); ++other) {
    if (others >> other & 1) rails_[other]->Withdraw(process, id);
  }
  if (received) SendNotice(process, first, *received);
  // Confirms over the rail that delivered the message: the sender measures the rate of this rail by the time of the
  // confirmation, so confirmations for other rails must not delay this one.
  if (end.ok()) {
    std::string brought(1, kBrought);
    AppendMessageId(brought, id);
    SendNotice(process, rail, brought);
  }
  CallBack(id.call, done, end, std::move(view));
  if (end.ok()) rails_[rail]->Flush();
}

// Cuts off a process that sends a large message where this process expects a small one. A rail cannot detect this
// mistake, because small messages are posted on no rail.
void Rails::ReceiveEarly(uint32_t process, const MessageId& id, int64_t bytes) {
  Status wrong;
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (peer.is_open() && !cancelled_.Contains(id.call)) wrong = peer.NoteEarly(id, bytes);
  }
  if (!wrong.ok()) EndAll(process, CutOff(process, wrong));
}

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
  Status error, wrong;  // error in the notice, and error in a small message
  {
    Lock lock(mutex_);
    Peer& peer = *peers_[process];
    if (peer.has_ended()) return;  // a fenced rail may still run callbacks that were due
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

}  // namespace jaxcomm

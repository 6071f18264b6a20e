// Messages to other processes.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/little_endian.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/peer.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

void Rails::Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  SendAs(to, std::move(spans), std::move(done), nullptr, /*copies=*/false);
}

bool Rails::SendCopy(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
  return SendAs(to, std::move(spans), std::move(done), nullptr, /*copies=*/true);
}

// Returns whether the caller may change the spans at once.
bool Rails::SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, std::unique_ptr<Loss> loss,
                   bool copies) {
  const Result<int64_t> bytes = CheckSpans(spans);
  if (!bytes.ok()) {
    done(bytes.status());
    return true;
  }
  if (bytes.value() <= kMaxSmall) {
    SendSmall(to, spans, bytes.value(), done);
    return true;
  }
  const auto message = std::make_shared<Outgoing>();
  if (!to.empty()) message->call = to[0].id.call;
  message->spans = std::move(spans);
  message->loss = std::move(loss);
  const bool is_free = copies && message->Copy(copied_bytes_, bytes.value());
  Status status;
  std::vector<std::vector<Receiver>> parts(rails_.size());
  {
    Lock lock(mutex_);
    if (!to.empty() && cancelled_.Contains(to[0].id.call)) return is_free;
    const auto is_here = [this](const Receiver& receiver) { return peers_[receiver.process]->is_open(); };
    if (std::any_of(to.begin(), to.end(), is_here)) message->done = std::exchange(done, nullptr);
    for (const Receiver& receiver : to) {
      Peer& peer = *peers_[receiver.process];
      if (!peer.is_open()) {
        status = message->status = peer.gone();
        continue;
      }
      ++message->receivers;
      if (const auto rail = peer.Keep(receiver, message, bytes.value())) parts[*rail].push_back(receiver);
    }
  }
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    if (!parts[rail].empty()) SendOn(rail, parts[rail], message);
  }
  if (done) CallBack({{message->call, [done = std::move(done), status] { done(status); }}});
  return is_free;
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
      if (peer.is_open()) {
        notices[i] = {peer.FirstRail(), peer.notices.Add(kMessage, text_for(to[i]), bytes)};
      } else {
        status = peer.gone();
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
  // A send fails only if its rail fails. The rail is then fenced, so the status is not needed here.
  Sent done = [this, message, receivers = to.size()](const Status&) { EndReading(message, receivers); };
  if (message->loss && MayLose(to[0].process, rail)) {
    jaxcomm::SendLossy(*rails_[rail], to[0], message->spans, message->loss->important, message->loss->limit,
                       std::move(done));
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

// Called when a receiver has confirmed the message, has left or has failed.
void Rails::EndReceiver(const std::shared_ptr<Outgoing>& message, std::vector<Due>& due) {
  if (--message->receivers > 0 || !message->done) return;
  if (Sent done = message->TakeDone()) {
    due.push_back({message->call, [done = std::move(done), status = message->status] { done(status); }});
  } else {
    only_read_.emplace(message->call, message);
  }
}

void Rails::Confirm(Peer& peer, std::string_view ids, std::vector<Due>& due) {
  NumberReader in(ids);
  while (const std::byte* const id = in.Take(kMessageIdBytes)) {
    const MessageId confirmed = DecodeMessageId(id);
    const std::optional<Peer::Unconfirmed> message = peer.unconfirmed.Take(confirmed);
    if (!message) continue;
    peer.Release(confirmed, *message);
    peer.rails[message->rail].Carry(message->bytes);
    EndReceiver(message->message, due);
  }
}

}  // namespace jaxcomm

#include "cc/transport/inbox.h"

#include <utility>

#include "cc/transport/spans.h"

namespace jaxcomm {
namespace {

std::string Name(const MessageId& id) {
  return "segment " + std::to_string(id.segment) + " of message " + std::to_string(id.index) + " from rank " +
         std::to_string(id.from) + " to rank " + std::to_string(id.to) + " of call " + std::to_string(id.call.launch) +
         "." + std::to_string(id.call.site) + "." + std::to_string(id.call.iteration);
}

Status WrongSize(const MessageId& id, int64_t bytes, int64_t expected) {
  return InvalidArgument(Name(id) + " with " + std::to_string(bytes) + " bytes where " + std::to_string(expected) +
                         " are expected");
}

Status WrongSender(const MessageId& id, uint32_t expected) {
  return InvalidArgument(Name(id) + ", which is process " + std::to_string(expected) + "'s to send");
}

}  // namespace

void Inbox::Notice(uint32_t process, std::string_view notice) {
  callbacks_->Push(std::nullopt,
                   [events = events_, process, text = std::string(notice)] { events->OnNotice(process, text); });
}

Result<std::optional<Incoming>> Inbox::Begin(uint32_t process, const MessageId& id, int64_t bytes) {
  std::optional<Incoming> arrival(Incoming{process, id, bytes, {}, std::nullopt, nullptr});
  if (IsCancelled(id.call)) return arrival;
  if (const auto found = posted_.find(id); found != posted_.end()) {
    Posted& posted = found->second;
    if (posted.process != process) return WrongSender(id, posted.process);
    if (posted.bytes != bytes) return WrongSize(id, bytes, posted.bytes);
    arrival->spans = posted.spans;
    arrival->posted = std::move(posted);
    posted_.erase(found);
    return arrival;
  }
  if (const auto found = early_.find(id); found != early_.end()) {
    if (found->second.process != process) return WrongSender(id, found->second.process);
    return InvalidArgument(Name(id) + " twice");
  }
  int64_t& kept = early_bytes_[process];
  if (kept + bytes + kEarlyOverhead > Transport::kMaxEarlyBytes) return std::optional<Incoming>();
  kept += bytes + kEarlyOverhead;
  arrival->early.reset(new std::byte[static_cast<size_t>(bytes)], std::default_delete<std::byte[]>());
  arrival->spans = {{arrival->early.get(), bytes, 0}};
  early_[id] = {process, bytes, arrival->early};
  if (bytes > Transport::kMaxSmall) {
    callbacks_->Push(id.call, [events = events_, process, id, bytes] { events->OnEarly(process, id, bytes); });
  }
  return arrival;
}

Result<Incoming> Inbox::BeginLossy(uint32_t process, const MessageId& id, int64_t bytes, int64_t may_lose) {
  Incoming arrival{process, id, bytes, {}, std::nullopt, nullptr};
  const auto found = posted_.find(id);
  if (found == posted_.end()) return arrival;
  Posted& posted = found->second;
  if (posted.process != process) return WrongSender(id, posted.process);
  if (posted.bytes != bytes) return WrongSize(id, bytes, posted.bytes);
  if (!posted.loss || posted.loss->may_lose != may_lose) {
    return InvalidArgument(Name(id) + " as one that may lose " + std::to_string(may_lose) +
                           " bytes, which is to lose " + std::to_string(posted.loss ? posted.loss->may_lose : 0));
  }
  arrival.spans = posted.spans;
  arrival.posted = std::move(posted);
  posted_.erase(found);
  return arrival;
}

void Inbox::End(Incoming arrival) {
  if (arrival.posted) {
    callbacks_->Push(arrival.id.call, [done = std::move(arrival.posted->done)] { done(Status(), nullptr); });
    return;
  }
  const auto early = arrival.early ? early_.find(arrival.id) : early_.end();
  if (early == early_.end()) return;  // cancelled
  const auto posted = posted_.find(arrival.id);
  if (posted == posted_.end()) {
    early->second.complete = true;
    return;
  }
  Forget(early);
  Deliver(arrival.id, std::move(posted->second), arrival.early);
  posted_.erase(posted);
}

std::optional<Refusal> Inbox::Post(const MessageId& id, Posted posted, const Status& gone) {
  if (const auto found = early_.find(id); found != early_.end()) {
    const Early& early = found->second;
    if (early.process != posted.process) {
      return Refusal{early.process, WrongSender(id, posted.process), std::move(posted.done)};
    }
    if (early.bytes != posted.bytes) {
      return Refusal{early.process, WrongSize(id, early.bytes, posted.bytes), std::move(posted.done)};
    }
    if (early.complete) {
      const std::shared_ptr<std::byte> data = early.data;
      Forget(found);
      Deliver(id, std::move(posted), data);
      return std::nullopt;
    }
  }
  const Status error = posted_.count(id) ? InvalidArgument(Name(id) + " has been posted twice") : gone;
  if (error.ok()) {
    posted_.emplace(id, std::move(posted));
  } else {
    callbacks_->Push(id.call, [done = std::move(posted.done), error] { done(error, nullptr); });
  }
  return std::nullopt;
}

void Inbox::Withdraw(uint32_t process, const MessageId& id) {
  const auto found = posted_.find(id);
  if (found != posted_.end() && found->second.process == process) posted_.erase(found);
}

void Inbox::Cancel(const CallId& call) {
  cancelled_.Add(call);
  MessageId first;
  first.call = call;
  for (auto at = posted_.lower_bound(first); at != posted_.end() && at->first.call == call;) at = posted_.erase(at);
  for (auto at = early_.lower_bound(first); at != early_.end() && at->first.call == call;) at = Forget(at);
  callbacks_->Drop(call);
}

void Inbox::Fail(uint32_t process, const Status& why, std::optional<Incoming> arrival) {
  if (arrival && arrival->posted) {
    callbacks_->Push(arrival->id.call, [done = std::move(arrival->posted->done), why] { done(why, nullptr); });
  }
  for (auto at = posted_.begin(); at != posted_.end();) {
    if (at->second.process == process) {
      callbacks_->Push(at->first.call, [done = std::move(at->second.done), why] { done(why, nullptr); });
      at = posted_.erase(at);
    } else {
      ++at;
    }
  }
  for (auto at = early_.begin(); at != early_.end();) {
    at = at->second.process == process && !at->second.complete ? Forget(at) : std::next(at);
  }
}

void Inbox::Drop(uint32_t process) {
  for (auto at = posted_.begin(); at != posted_.end();) {
    at = at->second.process == process ? posted_.erase(at) : std::next(at);
  }
  for (auto at = early_.begin(); at != early_.end();) at = at->second.process == process ? Forget(at) : std::next(at);
}

void Inbox::Deliver(const MessageId& id, Posted posted, const std::shared_ptr<std::byte>& data) {
  const bool as_view = posted.accepts_view && posted.bytes > 0 && !HasGaps(posted.spans);
  if (!as_view) ScatterPacked(data.get(), posted.spans);
  callbacks_->Push(id.call, [done = std::move(posted.done), view = as_view ? data : nullptr] { done(Status(), view); });
}

Inbox::EarlyMessages::iterator Inbox::Forget(EarlyMessages::iterator early) {
  early_bytes_[early->second.process] -= early->second.bytes + kEarlyOverhead;
  return early_.erase(early);
}

}  // namespace jaxcomm

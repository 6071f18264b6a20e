#include "cc/transport/inbox.h"

#include <utility>

#include "cc/transport/spans.h"

namespace jaxcomm {
namespace {

// Returns an error if `posted` does not fit the message.
Status Check(const Posted& posted, uint32_t process, const MessageId& id, int64_t bytes) {
  if (posted.process != process) return WrongSender(id, posted.process);
  if (posted.bytes != bytes) return WrongSize(id, bytes, posted.bytes);
  return Status();
}

}  // namespace

void Inbox::Notice(uint32_t process, std::string_view notice) {
  callbacks_->Push(std::nullopt,
                   [events = events_, process, text = std::string(notice)] { events->OnNotice(process, text); });
}

Result<std::optional<Incoming>> Inbox::Begin(uint32_t process, const MessageId& id, int64_t bytes) {
  std::optional<Incoming> arrival(Incoming{process, id, bytes, {}, std::nullopt, nullptr});
  if (IsCancelled(id.call)) return arrival;
  if (const Posted* const posted = posted_.Find(id)) {
    if (Status status = Check(*posted, process, id, bytes); !status.ok()) return status;
    arrival->spans = posted->spans;
    arrival->posted = posted_.Take(id);
    return arrival;
  }
  if (const EarlyMessages::Message* const early = early_.Find(id)) {
    if (early->process != process) return WrongSender(id, early->process);
    return InvalidArgument(NameOf(id) + " twice");
  }
  arrival->early = early_.Add(process, id, bytes);
  if (!arrival->early) return std::optional<Incoming>();
  arrival->spans = {{arrival->early.get(), bytes, 0}};
  if (bytes > Transport::kMaxSmall && on_early_) {
    callbacks_->Push(id.call, [this, process, id, bytes] { on_early_(process, id, bytes); });
  }
  return arrival;
}

Result<Incoming> Inbox::BeginLossy(uint32_t process, const MessageId& id, int64_t bytes, int64_t may_lose) {
  Incoming arrival{process, id, bytes, {}, std::nullopt, nullptr};
  const Posted* const posted = posted_.Find(id);
  if (posted == nullptr) return arrival;
  if (Status status = Check(*posted, process, id, bytes); !status.ok()) return status;
  if (!posted->loss || posted->loss->limit.bytes != may_lose) {
    return InvalidArgument(NameOf(id) + " that may lose " + std::to_string(may_lose) + " bytes where " +
                           std::to_string(posted->loss ? posted->loss->limit.bytes : 0) + " are expected");
  }
  arrival.spans = posted->spans;
  arrival.posted = posted_.Take(id);
  return arrival;
}

void Inbox::End(Incoming arrival) {
  if (arrival.posted) {
    callbacks_->Push(arrival.id.call, [done = std::move(arrival.posted->done)] { done(Status(), nullptr); });
    return;
  }
  EarlyMessages::Message* const early = arrival.early ? early_.Find(arrival.id) : nullptr;
  if (early == nullptr) return;  // the call was cancelled
  std::optional<Posted> posted = posted_.Take(arrival.id);
  if (!posted) {
    early->is_complete = true;
    return;
  }
  early_.Take(arrival.id);
  Deliver(arrival.id, std::move(*posted), arrival.early);
}

std::optional<Refusal> Inbox::Post(const MessageId& id, Posted posted, const Status& gone) {
  if (const EarlyMessages::Message* const early = early_.Find(id)) {
    if (early->process != posted.process) {
      return Refusal{early->process, WrongSender(id, posted.process), std::move(posted.done)};
    }
    if (early->bytes != posted.bytes) {
      return Refusal{early->process, WrongSize(id, early->bytes, posted.bytes), std::move(posted.done)};
    }
    if (early->is_complete) {
      Deliver(id, std::move(posted), early_.Take(id)->data);
      return std::nullopt;
    }
  }
  const Status error = posted_.Find(id) ? InvalidArgument(NameOf(id) + " has been posted twice") : gone;
  if (error.ok()) {
    posted_.Add(id, std::move(posted));
  } else {
    callbacks_->Push(id.call, [done = std::move(posted.done), error] { done(error, nullptr); });
  }
  return std::nullopt;
}

void Inbox::Withdraw(uint32_t process, const MessageId& id) {
  const Posted* const posted = posted_.Find(id);
  if (posted != nullptr && posted->process == process) posted_.Take(id);
}

void Inbox::Cancel(const CallId& call) {
  cancelled_.Add(call);
  posted_.TakeCall(call, [](const MessageId&, const Posted&) {});
  early_.Cancel(call);
  callbacks_->Drop(call);
}

void Inbox::Fail(uint32_t process, const Status& why, std::optional<Incoming> arrival) {
  const auto fail = [&](const MessageId& id, Posted posted) {
    callbacks_->Push(id.call, [done = std::move(posted.done), why] { done(why, nullptr); });
  };
  if (arrival && arrival->posted) fail(arrival->id, std::move(*arrival->posted));
  posted_.TakeIf([process](const Posted& posted) { return posted.process == process; }, fail);
  early_.DropIncomplete(process);
}

void Inbox::Drop(uint32_t process) {
  posted_.TakeIf([process](const Posted& posted) { return posted.process == process; },
                 [](const MessageId&, const Posted&) {});
  early_.Drop(process);
}

void Inbox::Deliver(const MessageId& id, Posted posted, const std::shared_ptr<std::byte>& data) {
  const bool as_view = posted.accepts_view && posted.bytes > 0 && !HasGaps(posted.spans);
  if (!as_view) ScatterPacked(data.get(), posted.spans);
  callbacks_->Push(id.call, [done = std::move(posted.done), view = as_view ? data : nullptr] { done(Status(), view); });
}

}  // namespace jaxcomm

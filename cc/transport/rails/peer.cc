#include "cc/transport/rails/peer.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/spans.h"

namespace jaxcomm {

std::optional<uint32_t> Rails::Peer::FirstRail() const {
  const uint32_t first = table.RailOf(/*call_bytes=*/0, /*segment=*/0);
  return rails[first].state == Rail::State::kOpen ? std::optional<uint32_t>(first) : std::nullopt;
}

bool Rails::Peer::Agrees() const {
  return std::all_of(rails.begin(), rails.end(), [](const Rail& rail) {
    return rail.state != Rail::State::kFencing && rail.fences == rail.their_fences;
  });
}

void Rails::Peer::Divide() {
  std::vector<RailTable::Range> divided = balance.shares();
  std::vector<double> open;
  for (const Rail& rail : rails) open.push_back(rail.state == Rail::State::kOpen ? 1 : 0);
  if (std::count(open.begin(), open.end(), 1) == 0) return;
  for (RailTable::Range& range : divided) {
    std::vector<double> weights;
    for (size_t i = 0; i < rails.size(); ++i) weights.push_back(open[i] * range.shares[i]);
    const bool has_share = std::any_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; });
    range.shares = SharesOf(has_share ? weights : open);
  }
  table = RailTable::Make(divided).value();
  const auto leaves = [](const Rail& rail) { return rail.state == Rail::State::kLeft; };
  // The history keeps the shares that applied before rails left.
  if (std::any_of(rails.begin(), rails.end(), leaves)) return;
  shares = std::move(divided);
  RecordShares();
}

bool Rails::Outgoing::Copy(const std::shared_ptr<std::atomic<int64_t>>& all, int64_t bytes) {
  if (all->fetch_add(bytes) + bytes <= kMaxCopiedBytes) copy.reset(new (std::nothrow) std::byte[bytes]);
  if (!copy) {
    *all -= bytes;
    return false;
  }
  std::byte* next = copy.get();
  for (ConstSpan& span : spans) {
    std::copy_n(span.data, span.bytes, next);
    span.data = next;
    next += span.bytes;
  }
  copied_bytes = bytes;
  all_copied_bytes = all;
  return true;
}

void Rails::Peer::RecordShares() {
  const auto now = SilentRails::Clock::now();
  for (size_t rail = 0; rail < rails.size(); ++rail) rails[rail].history.Divide(shares.back().shares[rail], now);
}

void Rails::Peer::RecordRates(int64_t call_bytes) {
  const auto now = SilentRails::Clock::now();
  const std::vector<double> rates = balance.rates(call_bytes);
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    if (rates[rail] > 0 && rails[rail].state == Rail::State::kOpen) rails[rail].history.Measure(rates[rail], now);
  }
}

uint32_t Rails::Peer::NextSegment(const CallId& call) {
  for (auto& [known, segments] : divided_calls) {
    if (known == call) return segments++;
  }
  divided_calls[oldest_divided] = {call, 1};
  oldest_divided = (oldest_divided + 1) % kDividedCalls;
  return 0;
}

std::optional<uint32_t> Rails::Peer::Keep(const Receiver& to, const std::shared_ptr<Outgoing>& message, int64_t bytes) {
  const MessageId& id = to.id;
  const std::optional<uint32_t> trial = balance.Trial(id);
  const bool tries = trial && rails[*trial].state == Rail::State::kOpen;
  const uint32_t rail = tries ? *trial : table.RailOf(id.call_bytes, NextSegment(id.call));
  const bool is_open = rails[rail].state == Rail::State::kOpen;
  if (is_open) {
    ++rails[rail].calls;
    ++message->readers;
  }
  // If the rail is not open, the message counts as sent before the last fence of the rail, so that it is resent.
  const uint32_t fences = rails[rail].fences - (is_open ? 0 : 1);
  unconfirmed.Set(id, {message, rail, fences, to.priority, bytes});
  if (balance.Begin(id, rail, bytes, SilentRails::Clock::now())) {
    RecordRates(id.call_bytes);
    Divide();
  }
  return is_open ? std::optional<uint32_t>(rail) : std::nullopt;
}

void Rails::Peer::Release(const MessageId& id, const Unconfirmed& message) {
  balance.End(id, message.rail, message.bytes, SilentRails::Clock::now());
}

NumberedNotices::Bytes Rails::Peer::TakeReceived() {
  std::string ids(NumberedNotices::kHeaderBytes, '\0');
  for (const MessageId& id : received) AppendMessageId(ids, id);
  received.clear();
  return notices.Add(kReceived, std::move(ids));
}

Status Rails::Peer::Take(std::string_view message, const CancelledCalls& cancelled, std::vector<Due>& due) {
  NumberReader in(message);
  const std::byte* const encoded = in.Take(kMessageIdBytes);
  if (encoded == nullptr) return InvalidArgument("a message without an id");
  const MessageId id = DecodeMessageId(encoded);
  if (cancelled.Contains(id.call)) return Status();
  const auto bytes = static_cast<int64_t>(in.rest().size());
  const auto* const data = reinterpret_cast<const std::byte*>(in.rest().data());
  if (bytes > kMaxSmall) return InvalidArgument("a message too large to go with the notices");
  if (const PostedOn* const found = posted.Find(id)) {
    if (found->bytes != bytes) return WrongSize(id, bytes, found->bytes);
    ScatterPacked(data, found->spans);
    due.push_back({id.call, [done = std::move(posted.Take(id)->done)] { done(Status(), nullptr); }});
    return Status();
  }
  if (early.Find(id) != nullptr) return InvalidArgument(NameOf(id) + " twice");
  const std::shared_ptr<std::byte> kept = early.Add(process, id, bytes);
  if (!kept) return InvalidArgument("more early messages than this process can keep");
  std::copy_n(data, bytes, kept.get());
  return Status();
}

Status Rails::Peer::NoteEarly(const MessageId& id, int64_t bytes) {
  const PostedOn* const found = posted.Find(id);
  if (found == nullptr) {
    if (large_early.size() < kMaxLargeEarly) large_early.Add(id, bytes);
    return Status();
  }
  return found->bytes == bytes ? Status() : WrongSize(id, bytes, found->bytes);
}

Result<bool> Rails::Peer::TakeEarly(const MessageId& id, const Posted& message) {
  if (const std::optional<int64_t> large = large_early.Take(id); large && *large != message.bytes) {
    return WrongSize(id, *large, message.bytes);
  }
  const EarlyMessages::Message* const found = early.Find(id);
  if (found == nullptr) return false;
  if (found->bytes != message.bytes) return WrongSize(id, found->bytes, message.bytes);
  ScatterPacked(early.Take(id)->data.get(), message.spans);
  return true;
}

void Rails::Peer::Cancel(const CallId& call, std::vector<Received>& received, std::vector<Sent>& sent) {
  posted.TakeCall(call, [&](const MessageId&, PostedOn message) { received.push_back(std::move(message.done)); });
  unconfirmed.TakeCall(call, [&](const MessageId& id, const Unconfirmed& message) {
    Release(id, message);
    sent.push_back(std::exchange(message.message->done, nullptr));
  });
  early.Cancel(call);
  large_early.TakeCall(call, [](const MessageId&, int64_t) {});
}

}  // namespace jaxcomm

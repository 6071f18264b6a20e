#include "cc/transport/rails/peer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/base/little_endian.h"
#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/spans.h"

namespace jaxcomm {
namespace {

Status WrongSize(int64_t bytes, int64_t expected) {
  return InvalidArgument("a message with " + std::to_string(bytes) + " bytes where " + std::to_string(expected) +
                         " are expected");
}

}  // namespace

std::optional<uint32_t> Rails::Peer::FirstRail() const {
  const uint32_t first = table.RailOf(/*call_bytes=*/0, /*segment=*/0);
  return rails[first].state == State::kOpen ? std::optional<uint32_t>(first) : std::nullopt;
}

bool Rails::Peer::Agrees() const {
  return std::all_of(rails.begin(), rails.end(), [](const Rail& rail) {
    return rail.state != State::kFencing && rail.fences == rail.their_fences;
  });
}

void Rails::Peer::Divide() {
  std::vector<RailTable::Range> divided = balance.shares();
  std::vector<double> open;
  for (const Rail& rail : rails) open.push_back(rail.state == State::kOpen ? 1 : 0);
  if (std::count(open.begin(), open.end(), 1) == 0) return;
  for (RailTable::Range& range : divided) {
    std::vector<double> weights;
    for (size_t i = 0; i < rails.size(); ++i) weights.push_back(open[i] * range.shares[i]);
    const bool has_share = std::any_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; });
    range.shares = SharesOf(has_share ? weights : open);
  }
  table = RailTable::Make(divided).value();
  const auto leaves = [](const Rail& rail) { return rail.state == State::kLeft; };
  if (std::any_of(rails.begin(), rails.end(), leaves)) return;  // rails that carry nothing more have no shares
  shares = std::move(divided);
  RecordShares();
}

void Rails::Peer::RecordShares() {
  const auto now = Silence::Clock::now();
  for (size_t rail = 0; rail < rails.size(); ++rail) rails[rail].history.Divide(shares.back().shares[rail], now);
}

void Rails::Peer::RecordRates(int64_t call_bytes) {
  const auto now = Silence::Clock::now();
  const std::vector<double> rates = balance.rates(call_bytes);
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    if (rates[rail] > 0 && rails[rail].state == State::kOpen) rails[rail].history.Measure(rates[rail], now);
  }
}

std::optional<uint32_t> Rails::Peer::Keep(const MessageId& id, const std::shared_ptr<Outgoing>& message,
                                          int64_t bytes) {
  const std::optional<uint32_t> trial = balance.Trial(id);
  const bool tries = trial && rails[*trial].state == State::kOpen;
  const uint32_t rail = tries ? *trial : table.RailOf(id.call_bytes, id.segment);
  const bool is_open = rails[rail].state == State::kOpen;
  if (is_open) {
    ++rails[rail].calls;
    ++message->readers;
  }
  // Where none is open, it is as lost as what the rail carried before it was fenced.
  const uint32_t fences = rails[rail].fences - (is_open ? 0 : 1);
  unconfirmed.insert_or_assign(id, Unconfirmed{message, rail, fences, bytes});
  if (balance.Begin(id, rail, bytes, Silence::Clock::now())) {
    RecordRates(id.call_bytes);
    Divide();
  }
  return is_open ? std::optional<uint32_t>(rail) : std::nullopt;
}

void Rails::Peer::Release(const MessageId& id, const Unconfirmed& message) {
  balance.End(id, message.rail, message.bytes, Silence::Clock::now());
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
  if (encoded == nullptr) return InvalidArgument("a message without a name");
  const MessageId id = DecodeMessageId(encoded);
  if (cancelled.Contains(id.call)) return Status();
  const auto bytes = static_cast<int64_t>(in.rest().size());
  if (bytes > kMaxSmall) return InvalidArgument("a message with the notices that is too large for them");
  if (const auto at = posted.find(id); at != posted.end()) {
    if (at->second.bytes != bytes) return WrongSize(bytes, at->second.bytes);
    ScatterPacked(reinterpret_cast<const std::byte*>(in.rest().data()), at->second.spans);
    due.push_back({id.call, [done = std::move(at->second.done)] { done(Status(), nullptr); }});
    posted.erase(at);
    return Status();
  }
  early_bytes += bytes + kEarlyOverhead;
  if (early_bytes > kMaxEarlyBytes) return InvalidArgument("more messages than can be kept of calls that nobody is in");
  if (!early.try_emplace(id, in.rest()).second) return InvalidArgument("a message twice");
  return Status();
}

Status Rails::Peer::NoteEarly(const MessageId& id, int64_t bytes) {
  const auto at = posted.find(id);
  if (at == posted.end()) {
    if (large_early.size() < kMaxLargeEarly) large_early.emplace(id, bytes);
    return Status();
  }
  return at->second.bytes == bytes ? Status() : WrongSize(bytes, at->second.bytes);
}

Result<bool> Rails::Peer::TakeEarly(const MessageId& id, const std::vector<Span>& spans, int64_t bytes) {
  if (const auto large = large_early.find(id); large != large_early.end()) {
    const int64_t came = large->second;
    large_early.erase(large);
    if (came != bytes) return WrongSize(came, bytes);
  }
  const auto at = early.find(id);
  if (at == early.end()) return false;
  const auto came = static_cast<int64_t>(at->second.size());
  if (came != bytes) return WrongSize(came, bytes);
  ScatterPacked(reinterpret_cast<const std::byte*>(at->second.data()), spans);
  early_bytes -= bytes + kEarlyOverhead;
  early.erase(at);
  return true;
}

void Rails::Peer::Cancel(const CallId& call, std::vector<Received>& received, std::vector<Sent>& sent) {
  MessageId first;
  first.call = call;
  for (auto at = posted.lower_bound(first); at != posted.end() && at->first.call == call; at = posted.erase(at)) {
    received.push_back(std::move(at->second.done));
  }
  for (auto at = unconfirmed.lower_bound(first); at != unconfirmed.end() && at->first.call == call;
       at = unconfirmed.erase(at)) {
    Release(at->first, at->second);
    sent.push_back(std::exchange(at->second.message->done, nullptr));
  }
  for (auto at = early.lower_bound(first); at != early.end() && at->first.call == call; at = early.erase(at)) {
    early_bytes -= static_cast<int64_t>(at->second.size()) + kEarlyOverhead;
  }
  for (auto at = large_early.lower_bound(first); at != large_early.end() && at->first.call == call;) {
    at = large_early.erase(at);
  }
}

}  // namespace jaxcomm

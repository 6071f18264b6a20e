#include "cc/transport/rails/peer.h"

#include <algorithm>
#include <utility>

#include "cc/transport/rails/notice_kinds.h"

namespace jaxcomm {

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
  const std::optional<uint32_t> over = is_open ? std::optional<uint32_t>(rail) : std::nullopt;
  if (bytes > kMaxCopied) {
    if (balance.Begin(id, rail, bytes, Silence::Clock::now())) {
      RecordRates(id.call_bytes);
      Divide();
    }
    return over;
  }
  copies.push_back(id);
  if (copies.size() > kMaxCopies) {
    unconfirmed.erase(copies.front());
    copies.pop_front();
  }
  return over;
}

void Rails::Peer::Release(const MessageId& id, const Unconfirmed& message) {
  if (message.bytes > kMaxCopied) balance.End(id, message.rail, message.bytes, Silence::Clock::now());
}

std::string Rails::Peer::TakeReceived() {
  std::string ids;
  for (const MessageId& id : received) AppendMessageId(ids, id);
  received.clear();
  return notices.Add(kReceived, ids);
}

}  // namespace jaxcomm

#include "cc/transport/rails/peer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cc/transport/rails/messages.h"

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
  std::vector<RailTable::Range> divided = shares;
  for (RailTable::Range& range : divided) {
    std::vector<uint64_t> weights;
    for (size_t i = 0; i < rails.size(); ++i) weights.push_back(rails[i].state == State::kOpen ? range.shares[i] : 0);
    if (std::accumulate(weights.begin(), weights.end(), uint64_t{0}) == 0) {
      for (size_t i = 0; i < rails.size(); ++i) weights[i] = rails[i].state == State::kOpen ? 1 : 0;
    }
    const uint64_t total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
    if (total == 0) return;  // none is open
    uint64_t sum = 0, begin = 0;
    for (size_t i = 0; i < rails.size(); ++i) {
      sum += weights[i];
      const uint64_t end = (RailTable::kUnits * sum + total / 2) / total;
      range.shares[i] = static_cast<uint32_t>(end - begin);
      begin = end;
    }
  }
  table = RailTable::Make(divided).value();
}

void Rails::Peer::Keep(const MessageId& id, Unconfirmed message) {
  const bool is_copied = message.message->done == nullptr;
  unconfirmed.insert_or_assign(id, std::move(message));
  if (!is_copied) return;
  copies.push_back(id);
  if (copies.size() <= kMaxCopies) return;
  unconfirmed.erase(copies.front());
  copies.pop_front();
}

std::string Rails::Peer::TakeReceived() {
  std::string ids;
  for (const MessageId& id : received) PutMessageId(ids, id);
  received.clear();
  return notices.Add(kReceived, ids);
}

}  // namespace jaxcomm

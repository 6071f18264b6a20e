#include "cc/transport/rails/balance.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace jaxcomm {

std::vector<uint32_t> SharesOf(const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<uint32_t> shares;
  double sum = 0;
  uint32_t begin = 0;
  for (const double weight : weights) {
    sum += weight;
    const auto end = static_cast<uint32_t>(std::lround(RailTable::kUnits * sum / total));
    shares.push_back(end - begin);
    begin = end;
  }
  return shares;
}

Balance::Balance(std::vector<RailTable::Range> shares) : shares_(std::move(shares)) {
  for (const RailTable::Range& range : shares_) ranges_.emplace_back(range.shares.size());
}

size_t Balance::IndexOf(int64_t call_bytes) const {
  const auto above =
      std::upper_bound(shares_.begin() + 1, shares_.end(), call_bytes,
                       [](int64_t bytes, const RailTable::Range& range) { return bytes < range.min_bytes; });
  return static_cast<size_t>(std::prev(above) - shares_.begin());
}

std::optional<uint32_t> Balance::Trial(const MessageId& id) const {
  const Range& range = ranges_[IndexOf(id.call_bytes)];
  return id.segment == 1 && range.call == id.call ? range.trial : std::nullopt;
}

std::vector<double> Balance::rates(int64_t call_bytes) const {
  std::vector<double> rates;
  for (const Rail& rail : ranges_[IndexOf(call_bytes)].rails) rates.push_back(rail.rate);
  return rates;
}

bool Balance::Begin(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now) {
  const size_t index = IndexOf(id.call_bytes);
  Range& range = ranges_[index];
  Rail& sender = range.rails[rail];
  if (sender.under_way == 0) sender.since = now;
  sender.under_way += bytes;
  if (range.calls >= 0 && range.call == id.call) return false;
  range.call = id.call;
  range.trial.reset();
  if (++range.calls < kCalls) return false;
  range.calls = 0;
  Divide(range, shares_[index].shares, now);
  return true;
}

void Balance::End(const MessageId& id, uint32_t rail, int64_t bytes, Clock::time_point now) {
  Rail& sender = ranges_[IndexOf(id.call_bytes)].rails[rail];
  if (sender.under_way == 0) return;  // the segment was sent before these shares were set
  sender.under_way = std::max(int64_t{0}, sender.under_way - bytes);
  sender.carried += bytes;
  if (sender.under_way == 0) sender.busy += now - sender.since;
}

void Balance::Divide(Range& range, std::vector<uint32_t>& shares, Clock::time_point now) {
  std::vector<double> rates;
  double total = 0, slowest = 0;
  bool is_known = true;
  for (size_t i = 0; i < shares.size(); ++i) {
    Rail& rail = range.rails[i];
    if (rail.under_way > 0) rail.busy += now - std::exchange(rail.since, now);
    const double seconds = std::chrono::duration<double>(rail.busy).count();
    if (rail.carried > 0 && seconds > 0) {
      rail.rate = static_cast<double>(rail.carried) / seconds;
    } else if (shares[i] > 0) {
      range.trial = static_cast<uint32_t>(i);
    }
    rail.carried = 0;
    rail.busy = Clock::duration(0);
    rates.push_back(shares[i] > 0 ? rail.rate : 0);
    total += rates.back();
    if (shares[i] == 0) continue;
    is_known = is_known && rail.rate > 0;
    slowest = std::max(slowest, shares[i] / rail.rate);
  }
  if (!is_known || slowest <= (1 + kGain) * RailTable::kUnits / total) return;
  std::vector<uint32_t> divided = SharesOf(rates);
  for (size_t i = 0; i < shares.size(); ++i) divided[i] = shares[i] > 0 ? std::max(divided[i], 1u) : 0;
  uint32_t& largest = *std::max_element(divided.begin(), divided.end());
  largest -= std::accumulate(divided.begin(), divided.end(), 0u) - RailTable::kUnits;
  shares = divided;
}

}  // namespace jaxcomm

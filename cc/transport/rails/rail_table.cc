#include "cc/transport/rails/rail_table.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <string>

namespace jaxcomm {
namespace {

// D'Hondt's method: each segment goes to the rail with the smallest (carried segments + 1) / share.
std::array<uint8_t, RailTable::kUnits> Divide(const std::vector<uint32_t>& shares) {
  std::array<uint8_t, RailTable::kUnits> rails;
  std::vector<uint64_t> carried(shares.size(), 0);
  for (uint8_t& rail : rails) {
    rail = static_cast<uint8_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
    for (size_t other = 0; other < shares.size(); ++other) {
      if ((carried[other] + 1) * shares[rail] < (carried[rail] + 1) * shares[other]) rail = static_cast<uint8_t>(other);
    }
    ++carried[rail];
  }
  return rails;
}

}  // namespace

Result<RailTable> RailTable::Make(const std::vector<Range>& ranges) {
  if (ranges.empty() || ranges[0].min_bytes != 0) return InvalidArgument("the first range of shares must begin at 0");
  RailTable table;
  for (const Range& range : ranges) {
    const uint64_t sum = std::accumulate(range.shares.begin(), range.shares.end(), uint64_t{0});
    if (range.shares.size() > kMaxRails || range.shares.size() != ranges[0].shares.size() || sum != kUnits) {
      return InvalidArgument("the shares of " + std::to_string(range.shares.size()) + " rails sum to " +
                             std::to_string(sum) + "; each range needs a share for every rail, with the sum " +
                             std::to_string(kUnits));
    }
    if (!table.splits_.empty() && range.min_bytes <= table.splits_.back().min_bytes) {
      return InvalidArgument("the ranges of shares do not ascend at " + std::to_string(range.min_bytes) + " bytes");
    }
    table.splits_.push_back({range.min_bytes, Divide(range.shares)});
  }
  return table;
}

uint32_t RailTable::RailOf(int64_t call_bytes, uint32_t segment) const {
  const auto above = std::upper_bound(splits_.begin() + 1, splits_.end(), call_bytes,
                                      [](int64_t bytes, const Split& split) { return bytes < split.min_bytes; });
  return std::prev(above)->rails[segment % kUnits];
}

std::vector<uint32_t> RailTable::rails() const {
  std::set<uint32_t> found;
  for (const Split& split : splits_) found.insert(split.rails.begin(), split.rails.end());
  return {found.begin(), found.end()};
}

}  // namespace jaxcomm

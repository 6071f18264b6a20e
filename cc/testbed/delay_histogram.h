// A histogram of delays in nanoseconds: their number, mean, quantiles, and the longest, in bounded memory.
//
//   DelayHistogram delays;
//   delays.Add(1200);
//   delays.Quantile(0.99);   // at most 1/16 too long
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace jaxcomm {

class DelayHistogram {
 public:
  // `delay`: 0 or more.
  void Add(int64_t delay) {
    ++counts_[BucketOf(static_cast<uint64_t>(delay))];
    ++count_;
    total_ += static_cast<double>(delay);
    longest_ = std::max(longest_, delay);
  }

  double Mean() const { return count_ > 0 ? total_ / static_cast<double>(count_) : 0; }
  int64_t Longest() const { return longest_; }
  // The shortest of delays that so large a share of all does not exceed; 0 if there are none.
  int64_t Quantile(double share) const {
    const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
    int64_t found = 0;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      found += counts_[bucket];
      if (found > 0 && found >= wanted) return std::min(longest_, LongestOf(bucket));
    }
    return longest_;
  }

 private:
  // Below 16 each delay has its bucket; above, each power of two has 16.
  static constexpr size_t kSteps = 16, kStepBits = 4;

  static size_t BucketOf(uint64_t delay) {
    size_t shift = 0;
    while (delay >> shift >= 2 * kSteps) ++shift;
    return shift * kSteps + static_cast<size_t>(delay >> shift);
  }
  static int64_t LongestOf(size_t bucket) {
    const size_t shift = bucket < 2 * kSteps ? 0 : bucket / kSteps - 1;
    return static_cast<int64_t>(((bucket - shift * kSteps + 1) << shift) - 1);
  }

  std::array<int64_t, (64 - kStepBits)* kSteps> counts_ = {};
  int64_t count_ = 0, longest_ = 0;
  double total_ = 0;
};

}  // namespace jaxcomm

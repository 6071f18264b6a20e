// A histogram of delays in nanoseconds. It gives their mean, their quantiles and the longest delay, in bounded memory.
//
//   DelayHistogram delays;
//   delays.Add(1200);
//   delays.Quantile(0.99);   // at most 1/16 longer than the exact quantile
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace jaxcomm {

class DelayHistogram {
 public:
  // `delay` is at least 0.
  void Add(int64_t delay) {
    ++counts_[BucketOf(static_cast<uint64_t>(delay))];
    ++count_;
    total_ += static_cast<double>(delay);
    longest_ = std::max(longest_, delay);
  }

  double Mean() const { return count_ > 0 ? total_ / static_cast<double>(count_) : 0; }
  int64_t Longest() const { return longest_; }
  // Returns the least d such that at least `share` of all delays are at most d, rounded up to the end of d's bucket.
  // Returns 0 if there are no delays.
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
  // Each delay below 16 has its own bucket. From 16 on, each range from a power of two to the next has 16 buckets.
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

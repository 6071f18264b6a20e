// Computes the median of the latest times of a repeated operation.
//
//   RecentTimes times;
//   times.Add(0.012);
//   std::optional<double> seconds = times.Median();   // nullopt until kLeast times are known
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <optional>

namespace jaxcomm {

class RecentTimes {
 public:
  static constexpr size_t kLeast = 8, kMost = 32;

  void Add(double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    times_[count_++ % kMost] = seconds;
  }

  std::optional<double> Median() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (count_ < kLeast) return std::nullopt;
    std::array<double, kMost> sorted = times_;
    const auto end = sorted.begin() + std::min(count_, kMost), middle = sorted.begin() + (end - sorted.begin()) / 2;
    std::nth_element(sorted.begin(), middle, end);
    return *middle;
  }

 private:
  mutable std::mutex mutex_;
  std::array<double, kMost> times_{};
  size_t count_ = 0;
};

}  // namespace jaxcomm

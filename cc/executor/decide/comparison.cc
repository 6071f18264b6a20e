#include "cc/executor/decide/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace jaxcomm {
namespace {

constexpr double kLeast = 0.005;  // a difference counts only if it exceeds this share of the second way's time
constexpr double kErrors = 2.0;   // a difference counts only if it exceeds this number of standard errors
constexpr size_t kTrimmed = 5;    // the lowest and the highest fifth of the times are trimmed

struct Mean {
  double mean, error;
};

// Returns the trimmed mean and its standard error. The error is computed from the winsorized deviation.
Mean MeanOf(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const size_t count = times.size(), cut = count / kTrimmed;
  const auto kept = static_cast<double>(count - 2 * cut);
  double sum = 0, all = 0, squares = 0;
  for (size_t i = cut; i < count - cut; ++i) sum += times[i];
  for (size_t i = 0; i < count; ++i) all += times[std::clamp(i, cut, count - cut - 1)];
  for (size_t i = 0; i < count; ++i) {
    const double deviation = times[std::clamp(i, cut, count - cut - 1)] - all / static_cast<double>(count);
    squares += deviation * deviation;
  }
  const double spread = std::sqrt(squares / static_cast<double>(count - 1));
  return {sum / kept, spread * std::sqrt(static_cast<double>(count)) / kept};
}

}  // namespace

double Comparison::least() const { return std::max(kLeast * second, kErrors * error); }

Comparison Compare(const std::vector<double>& first, const std::vector<double>& second) {
  const Mean one = MeanOf(first), other = MeanOf(second);
  return {one.mean, other.mean, std::hypot(one.error, other.error)};
}

double TrimmedMean(const std::vector<double>& times) { return MeanOf(times).mean; }

}  // namespace jaxcomm

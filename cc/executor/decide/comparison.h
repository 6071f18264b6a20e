// Compares the times of two ways to run the same calls or steps, such as a plan's schedule and the default schedule.
//
//   Comparison plan = Compare(planned, usual);
//   plan.IsShorter();   // the first way takes less time than the second way, by more than chance explains
#pragma once

#include <vector>

namespace jaxcomm {

// The trimmed mean of each way's times, and the standard error of the difference of the two means, in seconds. The
// lowest and the highest fifth of the times are trimmed, so a few long calls change nothing. If times alternate between
// two values, for instance because a rank is late in every other step, the median reflects only the more frequent
// value. The trimmed mean reflects both values, unless one of them occurs in less than a fifth of the times.
struct Comparison {
  double first, second, error;

  double least() const;  // in seconds: a difference counts only if it exceeds this value
  bool IsShorter() const { return second - first > least(); }
  bool IsLonger() const { return first - second > least(); }
};

// Each way needs at least two measured times.
Comparison Compare(const std::vector<double>& first, const std::vector<double>& second);

double TrimmedMean(const std::vector<double>& times);

}  // namespace jaxcomm

#include "cc/testbed/delay_histogram.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(DelayHistogramTest, NoneAreZero) {
  const DelayHistogram none;
  EXPECT_EQ(none.Mean(), 0);
  EXPECT_EQ(none.Quantile(0.99), 0);
  EXPECT_EQ(none.Longest(), 0);
}

TEST(DelayHistogramTest, QuantilesAreAtMostASixteenthTooLong) {
  for (const int64_t unit : {int64_t{1}, int64_t{37}, int64_t{1000000}, int64_t{1} << 50}) {
    DelayHistogram delays;
    for (int64_t i = 0; i < 1000; ++i) delays.Add(i * unit);
    EXPECT_DOUBLE_EQ(delays.Mean(), 499.5 * static_cast<double>(unit));
    EXPECT_EQ(delays.Longest(), 999 * unit);
    for (const auto& [share, exact] : {std::pair(0.001, 0), {0.5, 499}, {0.99, 989}, {1.0, 999}}) {
      EXPECT_GE(delays.Quantile(share), exact * unit);
      EXPECT_LE(delays.Quantile(share), exact * unit + exact * unit / 16);
    }
  }
}

TEST(DelayHistogramTest, TheLongestThereCanBeHasItsPlace) {
  DelayHistogram delays;
  delays.Add(INT64_MAX);
  EXPECT_EQ(delays.Quantile(0.5), INT64_MAX);
}

}  // namespace
}  // namespace jaxcomm

#include "cc/executor/sites/recent_times.h"

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(RecentTimesTest, TheMedianIsOfTheLatestTimes) {
  RecentTimes times;
  for (size_t i = 0; i < RecentTimes::kLeast; ++i) {
    EXPECT_FALSE(times.Median());
    times.Add(static_cast<double>(i));
  }
  EXPECT_EQ(times.Median(), RecentTimes::kLeast / 2);
  for (size_t i = 0; i < RecentTimes::kMost; ++i) times.Add(i % 4 == 0 ? 100.0 : 7.0);
  EXPECT_EQ(times.Median(), 7.0);
}

}  // namespace
}  // namespace jaxcomm

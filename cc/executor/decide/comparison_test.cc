#include "cc/executor/decide/comparison.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

std::vector<double> Times(double mean, double deviation, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<double> times(mean, deviation);
  std::vector<double> found;
  for (int i = 0; i < 32; ++i) found.push_back(times(random));
  return found;
}

TEST(Comparison, ADifferenceBeyondChanceCounts) {
  const Comparison found = Compare(Times(0.094, 0.001, 1), Times(0.1, 0.001, 2));
  EXPECT_TRUE(found.IsShorter());
  EXPECT_FALSE(found.IsLonger());
  EXPECT_NEAR(found.first, 0.094, 0.001);
  EXPECT_TRUE(Compare(Times(0.1, 0.001, 2), Times(0.094, 0.001, 1)).IsLonger());
}

TEST(Comparison, WhatChanceExplainsDoesNotCount) {
  for (const Comparison& found :
       {Compare(Times(0.0998, 0.001, 1), Times(0.1, 0.001, 2)), Compare(Times(0.094, 0.03, 3), Times(0.1, 0.001, 2))}) {
    EXPECT_FALSE(found.IsShorter());
    EXPECT_FALSE(found.IsLonger());
  }
}

TEST(Comparison, AFewLongTimesChangeNothing) {
  std::vector<double> times = Times(0.094, 0.001, 1);
  for (size_t i = 3; i < times.size(); i += 5) times[i] = 30;
  EXPECT_TRUE(Compare(times, Times(0.1, 0.001, 2)).IsShorter());
}

TEST(Comparison, OfTwoValuesTheMeanCounts) {
  std::vector<double> often, seldom;
  for (int i = 0; i < 32; ++i) often.push_back(i % 2 == 0 ? 1.0 : 2.0);
  for (int i = 0; i < 32; ++i) seldom.push_back(i % 3 == 0 ? 1.0 : 2.0);
  EXPECT_DOUBLE_EQ(TrimmedMean(often), 1.5);
  EXPECT_GT(TrimmedMean(seldom), 1.6);
  EXPECT_LT(TrimmedMean(seldom), 1.9);
}

}  // namespace
}  // namespace jaxcomm

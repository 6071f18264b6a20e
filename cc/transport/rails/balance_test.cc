#include "cc/transport/rails/balance.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int64_t kSegment = 256 << 10, kCall = 16 << 20;
constexpr uint32_t kSegments = 16;  // number of segments of a message to one of four processes

// Rails with given rates. Simulates calls over these rails.
class Link {
 public:
  Link(std::vector<RailTable::Range> shares, std::vector<double> rates)
      : rates(std::move(rates)), balance_(shares), table_(RailTable::Make(shares).value()) {}

  // Returns the duration of a call in seconds. `delay`: seconds that the other process adds to the duration. `noise`:
  // relative noise of the rate of each rail.
  double Call(double delay = 0, double noise = 0) {
    MessageId id;
    id.call.launch = ++launch_;
    id.call_bytes = kCall;
    std::vector<uint32_t> rails;
    for (id.segment = 0; id.segment < kSegments; ++id.segment) {
      rails.push_back(balance_.Trial(id).value_or(table_.RailOf(kCall, id.segment)));
      if (balance_.Begin(id, rails.back(), kSegment, now_)) table_ = RailTable::Make(balance_.shares()).value();
    }
    std::uniform_real_distribution<double> draw(1 - noise, 1 + noise);
    std::vector<double> factors;
    for (size_t rail = 0; rail < rates.size(); ++rail) factors.push_back(draw(random_));
    std::vector<double> ends(rates.size(), delay);
    std::vector<std::pair<double, uint32_t>> due;
    for (const uint32_t rail : rails) due.emplace_back(ends[rail] += kSegment / (rates[rail] * factors[rail]), rail);
    std::sort(due.begin(), due.end());
    for (const auto& [at, rail] : due) {
      balance_.End(id, rail, kSegment, now_ + std::chrono::duration_cast<Balance::Clock::duration>(Seconds(at)));
    }
    now_ += std::chrono::duration_cast<Balance::Clock::duration>(Seconds(due.back().first + 0.001));
    return due.back().first;
  }
  // Returns the relative loss of the current shares: the time to transfer a large buffer, divided by the time with the
  // best shares, minus 1.
  double Loss() const {
    const std::vector<uint32_t>& shares = balance_.shares()[0].shares;
    double slowest = 0;
    for (size_t rail = 0; rail < rates.size(); ++rail) slowest = std::max(slowest, shares[rail] / rates[rail]);
    return slowest * std::accumulate(rates.begin(), rates.end(), 0.0) / RailTable::kUnits - 1;
  }
  const std::vector<uint32_t>& shares() const { return balance_.shares()[0].shares; }

  std::vector<double> rates;  // bytes per second

 private:
  Balance balance_;
  RailTable table_;
  Balance::Clock::time_point now_{std::chrono::hours(1)};
  std::mt19937 random_{3};
  uint32_t launch_ = 0;
};

TEST(Balance, SharesFollowARateThatChangesAndComesBackWithin100Calls) {
  Link link({{0, {819, 205}}}, {62.5e6, 15.6e6});
  for (const double rate : {25e6, 62.5e6, 3e6, 62.5e6, 10e6, 62.5e6}) {
    link.rates[0] = rate;
    for (int i = 0; i < 100; ++i) link.Call(/*delay=*/0, /*noise=*/0.05);
    EXPECT_LT(link.Loss(), 0.07) << rate;
  }
}

TEST(Balance, SharesThatAreGoodStay) {
  Link link({{0, {512, 512}}}, {62.5e6, 62.5e6});
  for (int i = 0; i < 1000; ++i) {
    link.Call(/*delay=*/0, /*noise=*/0.02);
    ASSERT_LT(link.Loss(), 0.05);
  }
  Link exact({{0, {512, 512}}}, {62.5e6, 62e6});
  for (int i = 0; i < 1000; ++i) exact.Call();
  EXPECT_EQ(exact.shares(), (std::vector<uint32_t>{512, 512}));
}

TEST(Balance, ALateProcessIsNoRailsFault) {
  Link link({{0, {819, 205}}}, {62.5e6, 15.6e6});
  for (int i = 0; i < 200; ++i) {
    link.Call(/*delay=*/i % 3 ? 0.05 : 1.0);
    ASSERT_LT(link.Loss(), 0.05);
  }
}

TEST(Balance, ARailOfAlmostNoRateKeepsAShareAndIsTriedNowAndThen) {
  Link link({{0, {512, 512}}}, {62.5e6, 62.5e6});
  for (int i = 0; i < 60; ++i) link.Call();
  link.rates[1] = 0.2e6;
  for (int i = 0; i < 60; ++i) link.Call();
  EXPECT_GE(link.shares()[1], 1u);
  int slow = 0;
  for (int i = 0; i < 100; ++i) slow += link.Call() > 0.2 ? 1 : 0;
  EXPECT_GE(slow, 1);
  EXPECT_LE(slow, 4);
}

TEST(Balance, RailsWithoutAShareGetNoneAndRangesAreApart) {
  Balance balance({{0, {1024, 0, 0}}, {1 << 20, {512, 0, 512}}});
  MessageId id;
  id.call_bytes = kCall;
  Balance::Clock::time_point now;
  for (uint32_t call = 0; call < 200; ++call) {
    id.call.launch = call;
    for (const uint32_t rail : {0, 2}) balance.Begin(id, rail, kSegment, now);
    balance.End(id, 0, kSegment, now + std::chrono::milliseconds(1));
    balance.End(id, 2, kSegment, now + std::chrono::milliseconds(3));
    now += std::chrono::milliseconds(4);
  }
  EXPECT_EQ(balance.shares()[0].shares, (std::vector<uint32_t>{1024, 0, 0}));
  EXPECT_EQ(balance.shares()[1].shares, (std::vector<uint32_t>{768, 0, 256}));
}

}  // namespace
}  // namespace jaxcomm

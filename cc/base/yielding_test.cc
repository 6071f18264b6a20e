#include "cc/base/yielding.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kNobody = [](Clock::time_point) { return false; };
const auto kSlow = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };

class YieldingTest : public testing::Test {
 protected:
  std::atomic<int64_t> rests_until_{0};
};

TEST_F(YieldingTest, EndsWhenItIsReady) {
  int looks = 0, yields = 0;
  YieldUntil([&] { return ++looks == 2; }, rests_until_, kNobody, [&] { ++yields; });
  EXPECT_LE(yields, 1);
  YieldUntil([] { return true; }, rests_until_, kNobody, [&] { ADD_FAILURE() << "it was ready"; });
}

TEST_F(YieldingTest, EndsWhenItIsNotReadyInTime) {
  int yields = 0;
  YieldUntil([] { return false; }, rests_until_, kNobody, [&] { ++yields; });
  EXPECT_GE(yields, 1);
}

TEST_F(YieldingTest, AllThreadsRestAfterAYieldThatTookLong) {
  const auto never = [] { return false; };
  EXPECT_TRUE(YieldUntil(never, rests_until_, kNobody, kSlow));
  EXPECT_FALSE(YieldUntil(never, rests_until_, kNobody, [] { ADD_FAILURE() << "others compute on this processor"; }));
  const auto rest = std::chrono::nanoseconds(rests_until_) - std::chrono::steady_clock::now().time_since_epoch();
  EXPECT_GT(rest, std::chrono::milliseconds(25));
  std::this_thread::sleep_for(rest + std::chrono::milliseconds(1));
  int yields = 0;
  YieldUntil(never, rests_until_, kNobody, [&] { ++yields; });
  EXPECT_GE(yields, 1);
}

TEST_F(YieldingTest, NoThreadRestsIfTheOtherThreadWasAwaited) {
  Clock::time_point end;
  const auto was_awaited = [&](Clock::time_point asked) {
    end = asked;
    return true;
  };
  const Clock::time_point begin = Clock::now();
  EXPECT_FALSE(YieldUntil([] { return false; }, rests_until_, was_awaited, kSlow));
  EXPECT_EQ(rests_until_, 0);
  EXPECT_GT(end, begin);
  EXPECT_LE(end, Clock::now());
}

}  // namespace
}  // namespace jaxcomm

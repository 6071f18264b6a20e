#include "cc/base/yielding.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(YieldingTest, EndsWhenItIsReady) {
  Yielding yielding;
  int looks = 0, yields = 0;
  yielding.Until([&] { return ++looks == 2; }, [&] { ++yields; });
  EXPECT_LE(yields, 1);  // 0 if the first call of `ready` took all the time
  yielding.Until([] { return true; }, [&] { ADD_FAILURE() << "it was ready"; });
}

TEST(YieldingTest, EndsWhenItIsNotReadyInTime) {
  Yielding yielding;
  int yields = 0;
  yielding.Until([] { return false; }, [&] { ++yields; });
  EXPECT_GE(yields, 1);
}

TEST(YieldingTest, SleepsForAWhileAfterAYieldThatTookLong) {
  Yielding yielding;
  const auto never = [] { return false; };
  yielding.Until(never, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  yielding.Until(never, [] { ADD_FAILURE() << "others compute on this processor"; });
  std::this_thread::sleep_for(std::chrono::milliseconds(260));
  int yields = 0;
  yielding.Until(never, [&] { ++yields; });
  EXPECT_GE(yields, 1);
}

}  // namespace
}  // namespace jaxcomm

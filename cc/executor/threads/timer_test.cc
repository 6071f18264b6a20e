#include "cc/executor/threads/timer.h"

#include <atomic>
#include <chrono>
#include <future>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

TEST(TimerTest, JobsRunInTheOrderOfTheirTimes) {
  std::vector<int> order;
  std::promise<void> done;
  Timer timer;
  ASSERT_TRUE(timer.Start());
  timer.After(milliseconds(60), [&] {
    order.push_back(3);
    done.set_value();
  });
  timer.After(milliseconds(1), [&] { order.push_back(1); });
  timer.After(milliseconds(30), [&] { order.push_back(2); });
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TimerTest, AJobRunsAgainWhileItAsks) {
  std::atomic<int> runs{0};
  std::promise<void> done;
  Timer timer;
  ASSERT_TRUE(timer.Start());
  timer.After(milliseconds(1), [&] {
    if (++runs < 3) timer.RunAgain(milliseconds(1));
  });
  timer.After(milliseconds(100), [&] { done.set_value(); });
  done.get_future().wait();
  while (runs < 3) std::this_thread::yield();
  EXPECT_EQ(runs, 3);
}

}  // namespace
}  // namespace jaxcomm

#include "cc/executor/threads/call_threads.h"

#include <chrono>
#include <future>
#include <thread>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

constexpr double kDeadline = 0.2;  // in seconds

TEST(CallThreadsTest, AStoppedProcessReceivesBeforeItJudges) {
  std::promise<Clock::time_point> judged, released;
  CallThreads threads(1, [&](Clock::time_point now, double /*deadline*/) {
    judged.set_value(now);
    return false;
  });
  threads.SetDeadline(kDeadline);
  ASSERT_TRUE(threads.Start());
  threads.timer().After(milliseconds(0), [&] {  // delays the watch, as SIGSTOP would
    threads.WatchDeadlines();
    std::this_thread::sleep_for(milliseconds(600));
    released.set_value(Clock::now());
  });
  const Clock::time_point begin = released.get_future().get();
  EXPECT_GE(judged.get_future().get() - begin, milliseconds(400));
}

TEST(CallThreadsTest, AlwaysLateWatchesFailCallsAllTheSame) {
  std::promise<void> judged;
  CallThreads threads(1, [&](Clock::time_point /*now*/, double /*deadline*/) {
    judged.set_value();
    return false;
  });
  threads.SetDeadline(kDeadline);
  ASSERT_TRUE(threads.Start());
  threads.timer().After(milliseconds(0), [&] {
    std::this_thread::sleep_for(milliseconds(800));
    threads.timer().RunAgain(milliseconds(1));
  });
  threads.WatchDeadlines();
  EXPECT_EQ(judged.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace jaxcomm

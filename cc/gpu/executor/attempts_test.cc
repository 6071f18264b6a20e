#include "cc/gpu/executor/attempts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace jaxcomm::fused {
namespace {

TEST(AttemptsTest, EveryRankIsToldOfEveryAttemptOnce) {
  Attempts<int> attempts;
  int made = 0;
  const auto ask = [&](uint32_t rank) {
    const Result<int> outcome = attempts.Ask(rank, [&made]() -> Result<int> {
      if (++made < 3) return InvalidArgument("attempt " + std::to_string(made));
      return made;
    });
    return outcome.ok() ? std::to_string(outcome.value()) : outcome.status().message();
  };
  EXPECT_EQ(ask(0), "attempt 1");
  EXPECT_EQ(ask(0), "attempt 2");  // the next step of a rank that runs ahead
  EXPECT_EQ(ask(5), "attempt 1");
  EXPECT_EQ(ask(5), "attempt 2");
  EXPECT_EQ(ask(5), "3");
  EXPECT_EQ(ask(5), "3");
  EXPECT_EQ(ask(0), "3");
  EXPECT_EQ(ask(1), "attempt 1");
  EXPECT_EQ(made, 3);
}

TEST(AttemptsTest, RanksThatAskAtOnceMakeOne) {
  Attempts<int> attempts;
  std::atomic<int> made{0};
  std::vector<std::future<int>> asked;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    asked.push_back(std::async(std::launch::async, [&, rank] {
      const auto make = [&made]() -> Result<int> {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return ++made;
      };
      return attempts.Ask(rank, make).value();
    }));
  }
  for (std::future<int>& each : asked) EXPECT_EQ(each.get(), 1);
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace jaxcomm::fused

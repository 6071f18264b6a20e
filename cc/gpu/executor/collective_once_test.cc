#include "cc/gpu/executor/collective_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace jaxcomm::fused {
namespace {

TEST(CollectiveOnceTest, EveryRankGetsEveryOutcomeOnce) {
  CollectiveOnce<int> once;
  int made = 0;
  const auto ask = [&](uint32_t rank) {
    const Result<int> outcome = once.Get(rank, [&made]() -> Result<int> {
      if (++made < 3) return InvalidArgument("try " + std::to_string(made));
      return made;
    });
    return outcome.ok() ? std::to_string(outcome.value()) : outcome.status().message();
  };
  EXPECT_EQ(ask(0), "try 1");
  EXPECT_EQ(ask(0), "try 2");  // the next step of a rank that runs ahead
  EXPECT_EQ(ask(5), "try 1");
  EXPECT_EQ(ask(5), "try 2");
  EXPECT_EQ(ask(5), "3");
  EXPECT_EQ(ask(5), "3");
  EXPECT_EQ(ask(0), "3");
  EXPECT_EQ(ask(1), "try 1");
  EXPECT_EQ(made, 3);
}

TEST(CollectiveOnceTest, RanksThatAskAtOnceMakeOne) {
  CollectiveOnce<int> once;
  std::atomic<int> made{0};
  std::vector<std::future<int>> asked;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    asked.push_back(std::async(std::launch::async, [&, rank] {
      const auto make = [&made]() -> Result<int> {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return ++made;
      };
      return once.Get(rank, make).value();
    }));
  }
  for (std::future<int>& each : asked) EXPECT_EQ(each.get(), 1);
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace jaxcomm::fused

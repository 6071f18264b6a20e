#include "cc/executor/cuda/attempts.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace jaxcomm::fused

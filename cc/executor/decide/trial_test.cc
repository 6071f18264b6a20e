#include "cc/executor/decide/trial.h"

#include <array>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// Runs calls until the trial has its outcome, and returns the number of calls. Transfers take `plan` or `usual`
// milliseconds ± 10 %. Cycles take `plan_rest` or `usual_rest` milliseconds more than the transfers.
int RunUntilOutcome(Trial& trial, double plan, double usual, double plan_rest = 10, double usual_rest = 10) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  for (int call = 0; call < 1000; ++call) {
    if (trial.Decide() != Trial::Outcome::kOpen) return call;
    const bool is_default = trial.RunsDefault(static_cast<uint32_t>(call));
    const double transfer = (is_default ? usual : plan) * noise(random);
    trial.Record(is_default, {transfer / 1e3, (transfer + (is_default ? usual_rest : plan_rest)) / 1e3});
  }
  return -1;
}

TEST(Trial, APlanThatGainsIsKept) {
  Trial trial;
  EXPECT_LT(RunUntilOutcome(trial, 30, 50), 40);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kKept);
  EXPECT_FALSE(trial.RunsDefault(0));
  EXPECT_FALSE(trial.RunsDefault(2));
}

TEST(Trial, APlanThatIsSlowerIsDropped) {
  Trial trial;
  EXPECT_LT(RunUntilOutcome(trial, 50, 30), 40);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kDropped);
  EXPECT_TRUE(trial.RunsDefault(0));
}

TEST(Trial, APlanThatMakesNoDifferenceIsDropped) {
  Trial trial;
  EXPECT_LE(RunUntilOutcome(trial, 30, 30), 68);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kDropped);
}

TEST(Trial, AShorterTransferWithLongerCyclesIsDropped) {
  Trial trial;
  RunUntilOutcome(trial, 30, 50, /*plan_rest=*/60, /*usual_rest=*/10);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kDropped);
}

TEST(Trial, AnEqualTransferWithShorterCyclesIsKept) {
  Trial trial;
  RunUntilOutcome(trial, 30, 30, /*plan_rest=*/10, /*usual_rest=*/30);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kKept);
}

TEST(Trial, AFewLongCallsDecideNothing) {
  Trial trial;
  for (uint32_t call = 0; trial.Decide() == Trial::Outcome::kOpen; ++call) {
    const bool is_default = trial.RunsDefault(call);
    const bool is_long = !is_default && call % 16 == 0;
    trial.Record(is_default, {is_long ? 5.0 : is_default ? 0.05 + 1e-4 * (call % 3) : 0.03 + 1e-4 * (call % 3), -1});
  }
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kKept);
}

TEST(Trial, TurnsFollowNoPeriodOfLateness) {
  const Trial trial;
  for (uint32_t period = 2; period <= 20; ++period) {
    for (uint32_t first = 0; first < period; ++first) {
      std::array<int, 2> late{};
      for (uint32_t call = Trial::kWarmUp; call < Trial::kWarmUp + 2 * Trial::kCalls; ++call) {
        if ((call + first) % period < period / 2) ++late[trial.RunsDefault(call) ? 1 : 0];
      }
      EXPECT_NEAR(late[0], late[1], 7) << period << " " << first;
    }
  }
}

TEST(Trial, TurnsAreInPairs) {
  const Trial trial;
  for (uint32_t call = 0; call < 64; call += 2) EXPECT_EQ(trial.RunsDefault(call), trial.RunsDefault(call + 1));
}

TEST(Trial, IsOpenAgainWhenCallsTakeMuchLonger) {
  Trial trial;
  RunUntilOutcome(trial, 30, 50);
  for (int64_t call = 0; call < Trial::kPause; ++call) {
    trial.Record(/*is_default=*/false, {0.030, -1});
    EXPECT_EQ(trial.Decide(), Trial::Outcome::kKept);
  }
  for (size_t call = 0; call < Trial::kCalls; ++call) trial.Record(/*is_default=*/false, {0.045, -1});
  EXPECT_EQ(trial.Decide(), Trial::Outcome::kOpen);
  RunUntilOutcome(trial, 50, 40);
  EXPECT_EQ(trial.outcome(), Trial::Outcome::kDropped);
}

TEST(Trial, OthersFollowTheProcessThatDecides) {
  Trial trial;
  for (uint32_t call = 0; call < 8; ++call) trial.Record(trial.RunsDefault(call), {0.03, 0.04});
  trial.Follow(Trial::Outcome::kDropped);
  trial.Follow(Trial::Outcome::kDropped);
  EXPECT_TRUE(trial.RunsDefault(0));
  std::ostringstream out;
  trial.WriteJson(out);
  EXPECT_EQ(out.str(),
            ",\"trial\":{\"outcome\":\"dropped\",\"decided_here\":false,\"trials\":1,\"calls\":[4,4],\"plan_s\":0.03,"
            "\"default_s\":0.03,\"error_s\":0,\"plan_cycle_s\":0.04,\"default_cycle_s\":0.04}");
}

TEST(Trial, SaysNothingBeforeBothHaveBeenTimed) {
  Trial trial;
  trial.Record(/*is_default=*/false, {0.03, -1});
  EXPECT_FALSE(trial.has_begun());
  std::ostringstream out;
  trial.WriteJson(out);
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace jaxcomm

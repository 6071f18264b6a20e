#include "cc/executor/plan_switches.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint64_t kModule = 7, kOther = 8;

class PlanSwitchesTest : public testing::Test {
 protected:
  // What a call follows, by the plan's name; "waits" until that is decided.
  std::shared_ptr<std::string> Follow(uint64_t module, uint32_t launch) {
    auto followed = std::make_shared<std::string>("waits");
    switches_.Follow(module, launch,
                     [followed](const Status& status, const std::shared_ptr<const PlannedLists>& plan, bool) {
                       *followed = !status.ok() ? status.message() : plan ? plan->plan : "own";
                     });
    return followed;
  }
  static std::shared_ptr<const PlannedLists> Plan(const std::string& name) {
    return std::make_shared<PlannedLists>(PlannedLists{name, 4, {{0, "", {}}}});
  }

  PlanSwitches switches_;
};

TEST_F(PlanSwitchesTest, CallsFollowAPlanFromItsLaunchOn) {
  EXPECT_EQ(*Follow(kModule, 0), "own");
  ASSERT_TRUE(switches_.Prepare(Plan("one"), {{kModule, 3}}));
  EXPECT_EQ(*Follow(kModule, 2), "own");
  switches_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kModule, 2), "own");
  EXPECT_EQ(*Follow(kModule, 3), "one");
  EXPECT_EQ(*Follow(kModule, 4), "one");
  EXPECT_EQ(*Follow(kOther, 4), "own");
  ASSERT_TRUE(switches_.Prepare(nullptr, {{kModule, 6}}));
  switches_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kModule, 5), "one");
  EXPECT_EQ(*Follow(kModule, 6), "own");
}

TEST_F(PlanSwitchesTest, CallsOfAPreparedLaunchWaitForTheDecision) {
  for (const bool commit : {true, false}) {
    const uint32_t first = commit ? 3 : 9;
    ASSERT_TRUE(switches_.Prepare(Plan("new"), {{kModule, first}}));
    const auto before = Follow(kModule, first - 1), at = Follow(kModule, first), after = Follow(kModule, first + 1);
    EXPECT_EQ(*at, "waits");
    EXPECT_EQ(*after, "waits");
    const std::string old = *before;
    EXPECT_EQ(old, commit ? "own" : "new");
    switches_.Decide(commit);
    EXPECT_EQ(*at, commit ? "new" : old);
    EXPECT_EQ(*after, commit ? "new" : old);
  }
}

TEST_F(PlanSwitchesTest, WhatHasBegunOrIsNotDecidedIsNotPrepared) {
  Follow(kModule, 5);
  EXPECT_FALSE(switches_.Prepare(Plan("late"), {{kOther, 9}, {kModule, 5}}));
  switches_.Decide(/*commit=*/true);  // nothing
  EXPECT_EQ(*Follow(kOther, 9), "own");
  ASSERT_TRUE(switches_.Prepare(Plan("one"), {{kModule, 8}}));
  EXPECT_FALSE(switches_.Prepare(Plan("two"), {{kOther, 20}}));
  switches_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kOther, 20), "own");
  EXPECT_EQ(*Follow(kModule, 8), "one");
}

TEST_F(PlanSwitchesTest, WhereNobodyKnowsCallsFail) {
  ASSERT_TRUE(switches_.Prepare(Plan("one"), {{kModule, 2}}));
  const auto waiting = Follow(kModule, 2);
  switches_.Fail(Status(Code::kInternal, "no answer"));
  EXPECT_EQ(*waiting, "no answer");
  EXPECT_EQ(*Follow(kModule, 3), "no answer");
  EXPECT_EQ(*Follow(kModule, 1), "own");
  EXPECT_EQ(*Follow(kOther, 3), "own");
}

TEST_F(PlanSwitchesTest, NextLaunchesAreThoseThatHaveNotBegun) {
  Follow(kOther, 0);
  Follow(kModule, 4);
  Follow(kModule, 3);
  const auto next = switches_.Next();
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(next[0].launch, 5u);
  EXPECT_EQ(next[1].launch, 1u);
  ASSERT_TRUE(switches_.Prepare(nullptr, {{99, 4}}));  // of a module that has not been launched
  EXPECT_EQ(switches_.Next().size(), 2u);
}

TEST_F(PlanSwitchesTest, ALaterDecisionCountsWhereAnEarlierOneHasNotBegun) {
  Follow(kModule, 0);
  ASSERT_TRUE(switches_.Prepare(Plan("one"), {{kModule, 9}}));
  switches_.Decide(/*commit=*/true);
  ASSERT_TRUE(switches_.Prepare(Plan("two"), {{kModule, 5}}));
  switches_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kModule, 4), "own");
  EXPECT_EQ(*Follow(kModule, 5), "two");
  EXPECT_EQ(*Follow(kModule, 9), "two");
}

TEST_F(PlanSwitchesTest, PlansThatNothingFollowsAreLetGo) {
  std::vector<std::weak_ptr<const PlannedLists>> plans;
  Follow(kOther, 0);  // is not launched again
  for (uint32_t launch = 0; launch < 1000; ++launch) {
    const auto plan = Plan(std::to_string(launch));
    plans.push_back(plan);
    ASSERT_TRUE(switches_.Prepare(plan, {{kModule, launch}, {kOther, 5}}));
    switches_.Decide(/*commit=*/true);
    EXPECT_EQ(*Follow(kModule, launch), plan->plan);
  }
  const auto alive = std::count_if(plans.begin(), plans.end(), [](const auto& plan) { return !plan.expired(); });
  EXPECT_LE(alive, 8);
  EXPECT_FALSE(plans.back().expired());
}

TEST_F(PlanSwitchesTest, PeriodsAreThoseOfLaunchesUnderOneDecision) {
  const auto periods = [this](uint64_t module) {
    const auto all = switches_.Periods();
    const auto found = all.find(module);
    return found == all.end() ? 0 : found->second.size();
  };
  for (uint32_t launch = 0; launch < 10; ++launch) {
    Follow(kModule, launch);
    Follow(kModule, launch);  // another call or rank of it
  }
  EXPECT_EQ(periods(kModule), 9u);
  EXPECT_EQ(periods(kOther), 0u);
  ASSERT_TRUE(switches_.Prepare(Plan("one"), {{kModule, 11}}));
  switches_.Decide(/*commit=*/true);
  Follow(kModule, 10);
  Follow(kModule, 11);
  EXPECT_EQ(periods(kModule), 0u);
  Follow(kModule, 12);
  EXPECT_EQ(periods(kModule), 1u);
  for (uint32_t launch = 13; launch < 200; ++launch) Follow(kModule, launch);
  EXPECT_EQ(periods(kModule), PlanSwitches::kPeriods);
  const std::vector<double> latest = switches_.Periods().at(kModule);
  for (const double seconds : latest) EXPECT_GE(seconds, 0);
}

TEST(PlannedListsTest, AreFoundByBytesForGroupsOfTheirSize) {
  const std::vector<std::shared_ptr<const Messages>> some(4);
  const PlannedLists lists{"plan", 4, {{0, "", {}}, {1000, "ring", some}, {5000, "late", some}}};
  const auto find = [&](uint32_t ranks, int64_t bytes) {
    const PlannedLists::Range* const found = lists.Find(ranks, bytes);
    return found ? found->name : "";
  };
  EXPECT_EQ(find(4, 0), "");
  EXPECT_EQ(find(4, 999), "");
  EXPECT_EQ(find(4, 1000), "ring");
  EXPECT_EQ(find(4, 4999), "ring");
  EXPECT_EQ(find(4, 1 << 30), "late");
  EXPECT_EQ(find(3, 1 << 30), "");
}

}  // namespace
}  // namespace jaxcomm

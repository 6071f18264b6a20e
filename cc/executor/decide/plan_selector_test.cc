#include "cc/executor/decide/plan_selector.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint64_t kCommunicator = 7, kOther = 8;

class PlanSelectorTest : public testing::Test {
 protected:
  // `*call` is the name of the plan that the call follows, "waits" if the plan is not decided yet, "own" if the call
  // runs its call site's lists, or the text of the error.
  struct Call {
    PlanSelector& plans;
    uint64_t communicator;
    uint32_t launch;
    uint64_t step;
    std::string operator*() const {
      const std::optional<PlanSelector::Plan> plan = plans.Select(communicator, launch, step);
      return !plan ? "waits" : !plan->ok() ? plan->status().message() : plan->value() ? plan->value()->plan : "own";
    }
  };
  Call Follow(uint64_t communicator, uint32_t launch, uint64_t step = 0) {
    Call call{plans_, communicator, launch, step};
    *call;
    return call;
  }
  static std::shared_ptr<const PlannedLists> Plan(const std::string& name) {
    return std::make_shared<PlannedLists>(PlannedLists{name, 4, {{0, "", {}}}});
  }

  int decisions_ = 0;
  PlanSelector plans_{[this] { ++decisions_; }};
};

TEST_F(PlanSelectorTest, CallsFollowAPlanFromItsLaunchOn) {
  EXPECT_EQ(*Follow(kCommunicator, 0), "own");
  ASSERT_TRUE(plans_.Prepare(Plan("one"), {{kCommunicator, 3}}));
  EXPECT_EQ(*Follow(kCommunicator, 2), "own");
  plans_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kCommunicator, 2), "own");
  EXPECT_EQ(*Follow(kCommunicator, 3), "one");
  EXPECT_EQ(*Follow(kCommunicator, 4), "one");
  EXPECT_EQ(*Follow(kOther, 4), "own");
  ASSERT_TRUE(plans_.Prepare(nullptr, {{kCommunicator, 6}}));
  plans_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kCommunicator, 5), "one");
  EXPECT_EQ(*Follow(kCommunicator, 6), "own");
}

TEST_F(PlanSelectorTest, CallsOfAPreparedLaunchWaitForTheDecision) {
  for (const bool commit : {true, false}) {
    const uint32_t first = commit ? 3 : 9;
    ASSERT_TRUE(plans_.Prepare(Plan("new"), {{kCommunicator, first}}));
    const auto before = Follow(kCommunicator, first - 1), at = Follow(kCommunicator, first),
               after = Follow(kCommunicator, first + 1);
    EXPECT_EQ(*at, "waits");
    EXPECT_EQ(*after, "waits");
    const std::string old = *before;
    EXPECT_EQ(old, commit ? "own" : "new");
    const int decisions = decisions_;
    plans_.Decide(commit);
    EXPECT_EQ(decisions_, decisions + 1);
    EXPECT_EQ(*at, commit ? "new" : old);
    EXPECT_EQ(*after, commit ? "new" : old);
  }
}

TEST_F(PlanSelectorTest, WhatHasBegunOrIsNotDecidedIsNotPrepared) {
  Follow(kCommunicator, 5);
  EXPECT_FALSE(plans_.Prepare(Plan("late"), {{kOther, 9}, {kCommunicator, 5}}));
  plans_.Decide(/*commit=*/true);  // has no effect, because no change is prepared
  EXPECT_EQ(*Follow(kOther, 9), "own");
  ASSERT_TRUE(plans_.Prepare(Plan("one"), {{kCommunicator, 8}}));
  EXPECT_FALSE(plans_.Prepare(Plan("two"), {{kOther, 20}}));
  plans_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kOther, 20), "own");
  EXPECT_EQ(*Follow(kCommunicator, 8), "one");
}

TEST_F(PlanSelectorTest, WhereNobodyKnowsCallsFail) {
  ASSERT_TRUE(plans_.Prepare(Plan("one"), {{kCommunicator, 2}}));
  const auto waiting = Follow(kCommunicator, 2);
  plans_.Fail(Status(Code::kInternal, "no answer"));
  EXPECT_EQ(decisions_, 1);
  EXPECT_EQ(*waiting, "no answer");
  EXPECT_EQ(*Follow(kCommunicator, 3), "no answer");
  EXPECT_EQ(*Follow(kCommunicator, 1), "own");
  EXPECT_EQ(*Follow(kOther, 3), "own");
}

TEST_F(PlanSelectorTest, NextLaunchesAreThoseThatHaveNotBegun) {
  Follow(kOther, 0);
  Follow(kCommunicator, 4);
  Follow(kCommunicator, 3);
  const auto next = plans_.Next();
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(next[0].launch, 5u);
  EXPECT_EQ(next[1].launch, 1u);
  ASSERT_TRUE(plans_.Prepare(nullptr, {{99, 4}}));  // a communicator without launches
  EXPECT_EQ(plans_.Next().size(), 2u);
}

TEST_F(PlanSelectorTest, ALaterDecisionCountsWhereAnEarlierOneHasNotBegun) {
  Follow(kCommunicator, 0);
  ASSERT_TRUE(plans_.Prepare(Plan("one"), {{kCommunicator, 9}}));
  plans_.Decide(/*commit=*/true);
  ASSERT_TRUE(plans_.Prepare(Plan("two"), {{kCommunicator, 5}}));
  plans_.Decide(/*commit=*/true);
  EXPECT_EQ(*Follow(kCommunicator, 4), "own");
  EXPECT_EQ(*Follow(kCommunicator, 5), "two");
  EXPECT_EQ(*Follow(kCommunicator, 9), "two");
}

TEST_F(PlanSelectorTest, PlansThatNothingFollowsAreLetGo) {
  std::vector<std::weak_ptr<const PlannedLists>> plans;
  Follow(kOther, 0);  // the only launch on kOther
  for (uint32_t launch = 0; launch < 1000; ++launch) {
    const auto plan = Plan(std::to_string(launch));
    plans.push_back(plan);
    ASSERT_TRUE(plans_.Prepare(plan, {{kCommunicator, launch}, {kOther, 5}}));
    plans_.Decide(/*commit=*/true);
    EXPECT_EQ(*Follow(kCommunicator, launch), plan->plan);
  }
  const auto alive = std::count_if(plans.begin(), plans.end(), [](const auto& plan) { return !plan.expired(); });
  EXPECT_LE(alive, 8);
  EXPECT_FALSE(plans.back().expired());
}

TEST_F(PlanSelectorTest, PeriodsAreThoseOfLaunchesUnderOneDecision) {
  const auto periods = [this](uint64_t step) {
    const auto all = plans_.Periods();
    const auto found = all.find(step);
    return found == all.end() ? 0 : found->second.size();
  };
  constexpr uint64_t kStep = 70, kOtherStep = 71;
  for (uint32_t launch = 0; launch < 10; ++launch) {
    Follow(kCommunicator, launch, kStep);
    Follow(kCommunicator, launch, kStep);  // as another call or rank of the same launch does
  }
  EXPECT_EQ(periods(kStep), 9u);
  EXPECT_EQ(periods(kOtherStep), 0u);
  ASSERT_TRUE(plans_.Prepare(Plan("one"), {{kCommunicator, 11}}));
  plans_.Decide(/*commit=*/true);
  Follow(kCommunicator, 10, kStep);
  Follow(kCommunicator, 11, kStep);
  EXPECT_EQ(periods(kStep), 0u);
  Follow(kCommunicator, 12, kStep);
  EXPECT_EQ(periods(kStep), 1u);
  for (uint32_t launch = 13; launch < 200; ++launch) Follow(kCommunicator, launch, kStep);
  EXPECT_EQ(periods(kStep), PlanSelector::kPeriods);
  const std::vector<double> latest = plans_.Periods().at(kStep);
  for (const double seconds : latest) EXPECT_GE(seconds, 0);
}

TEST_F(PlanSelectorTest, PeriodsOfStepsOnOneCommunicatorDoNotMix) {
  for (uint32_t launch = 0; launch < 12; ++launch) Follow(kCommunicator, launch, launch % 3 == 0 ? 71 : 70);
  EXPECT_EQ(plans_.Periods().at(70).size(), 7u);
  EXPECT_EQ(plans_.Periods().at(71).size(), 3u);
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

#include "cc/executor/planned_site.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 3;
constexpr size_t kFloats = 3000;

class PlannedSiteTest : public testing::Test {
 protected:
  PlannedSiteTest() : network_(kProcesses, /*seed=*/1) {
    MessageGroup group{{}, "all_reduce/flat/3", {}};
    for (uint32_t process = 0; process < kProcesses; ++process) group.ranks.push_back({process, 10 * process});
    for (uint32_t process = 0; process < kProcesses; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_.back()->events());
      executors_.back()->Connect(&network_.transport(process));
      switches_.push_back(std::make_unique<PlanSwitches>());
      auto site = PlannedSite::Make({"psum", "data", "auto", "train.py:57"}, Reduction::kSum, /*module=*/7, /*site=*/0,
                                    {group}, registry_, *switches_.back(), process);
      EXPECT_TRUE(site.ok()) << site.status().message();
      sites_.push_back(site.value());
      EXPECT_TRUE(sites_.back()->SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[process]->stats()).ok());
      buffers_.emplace_back(kFloats);
    }
  }
  ~PlannedSiteTest() override { network_.Stop(); }

  std::future<Status> Arrive(uint32_t process, int64_t run) {
    std::fill(buffers_[process].begin(), buffers_[process].end(), static_cast<float>(process + 1));
    auto* const bytes = reinterpret_cast<std::byte*>(buffers_[process].data());
    const auto end = std::make_shared<std::promise<Status>>();
    sites_[process]->Arrive(*executors_[process], 1000 * process + run, process, {{bytes}, {bytes}},
                            [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }
  void ExpectSum(std::vector<std::future<Status>>& ends) {
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const auto& buffer : buffers_) EXPECT_EQ(buffer, std::vector<float>(kFloats, 6));
  }
  void Sum(int64_t run) {
    std::vector<std::future<Status>> ends;
    for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, run));
    ExpectSum(ends);
  }
  std::shared_ptr<const PlannedLists> Plan(const std::string& name, const std::string& list) {
    std::vector<std::shared_ptr<const Messages>> lists;
    for (uint32_t rank = 0; rank < kProcesses; ++rank) lists.push_back(registry_.Find(list, rank));
    return std::make_shared<PlannedLists>(PlannedLists{name, kProcesses, {{0, "", {}}, {4 * kFloats, list, lists}}});
  }
  // How often process 0 ran calls of a plan.
  int Calls(const std::string& plan) {
    const std::string json = executors_[0]->stats().Json();
    const size_t at = json.find("\"plan\":\"" + plan + "\"");
    if (at == std::string::npos) return 0;
    const size_t calls = json.find("\"calls\":", at);
    return std::stoi(json.substr(calls + std::strlen("\"calls\":")));
  }

  SimulatedNetwork network_;
  MessageRegistry registry_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<PlanSwitches>> switches_;
  std::vector<std::shared_ptr<PlannedSite>> sites_;
  std::vector<std::vector<float>> buffers_;
};

TEST_F(PlannedSiteTest, AllProcessesFollowThePlanFromItsLaunchOn) {
  int64_t run = 0;
  for (; run < 3; ++run) Sum(run);
  for (const auto& switches : switches_) {
    ASSERT_TRUE(switches->Prepare(Plan("ring", "all_reduce/ring/3"), {{7, 4}}));
    switches->Decide(/*commit=*/true);
  }
  for (; run < 6; ++run) Sum(run);
  EXPECT_EQ(Calls("auto"), 4);
  EXPECT_EQ(Calls("ring"), 2);
}

TEST_F(PlannedSiteTest, OverManyPlansMemoryAndStatisticsStayBounded) {
  constexpr uint32_t kPlans = 1000;
  std::vector<std::weak_ptr<const PlannedLists>> plans;
  for (uint32_t run = 0; run < kPlans; ++run) {
    const auto plan = Plan("plan " + std::to_string(run), "all_reduce/ring/3");
    plans.push_back(plan);
    for (const auto& switches : switches_) {
      ASSERT_TRUE(switches->Prepare(plan, {{7, run}}));
      switches->Decide(/*commit=*/true);
    }
    Sum(run);
  }
  const auto alive = std::count_if(plans.begin(), plans.end(), [](const auto& plan) { return !plan.expired(); });
  EXPECT_LE(alive, 8);
  const std::string json = executors_[0]->stats().Json(/*with_spans=*/false);
  size_t sites = 0;
  for (size_t at = 0; (at = json.find("\"calls\":", at)) != std::string::npos; ++at) ++sites;
  EXPECT_LE(sites, Stats::kUnused + 4);
  EXPECT_EQ(Calls("plan " + std::to_string(kPlans - 1)), 1);
}

TEST_F(PlannedSiteTest, ACallWaitsForAProcessThatDoesNotKnowYet) {
  for (const auto& switches : switches_) ASSERT_TRUE(switches->Prepare(Plan("ring", "all_reduce/ring/3"), {{7, 0}}));
  for (uint32_t process : {0u, 1u}) switches_[process]->Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  EXPECT_EQ(ends[2].wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  switches_[2]->Decide(/*commit=*/true);
  ExpectSum(ends);
  EXPECT_EQ(Calls("ring"), 1);
}

TEST_F(PlannedSiteTest, ProcessesThatFollowOtherPlansAddNothing) {
  ASSERT_TRUE(switches_[1]->Prepare(Plan("ring", "all_reduce/ring/3"), {{7, 0}}));
  switches_[1]->Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  for (auto& end : ends) EXPECT_FALSE(end.get().ok());
}

TEST_F(PlannedSiteTest, WhereOneProcessCannotKnowTheCallFailsOnAll) {
  for (const auto& switches : switches_) ASSERT_TRUE(switches->Prepare(Plan("ring", "all_reduce/ring/3"), {{7, 0}}));
  for (uint32_t process : {0u, 1u}) switches_[process]->Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  switches_[2]->Fail(Status(Code::kInternal, "no answer of process 0"));
  for (auto& end : ends) EXPECT_NE(end.get().message().find("no answer of process 0"), std::string::npos);
}

// As XLA's do, which go on with the rest of a device's program.
TEST_F(PlannedSiteTest, CallsThatHaveWaitedMayBlockWhereTheyEnd) {
  const MessageGroup here{{{0, 0}, {0, 1}}, "all_reduce/flat/2", {}};
  const auto site = PlannedSite::Make({"psum", "data", "auto", "train.py:58"}, Reduction::kSum, /*module=*/8,
                                      /*site=*/0, {here}, registry_, *switches_[0], /*process=*/0);
  ASSERT_TRUE(site.ok()) << site.status().message();
  ASSERT_TRUE(site.value()->SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[0]->stats()).ok());
  ASSERT_TRUE(switches_[0]->Prepare(nullptr, {{8, 0}}));
  std::promise<void> second;
  auto second_has_begun_to_end = second.get_future().share();
  std::vector<std::promise<bool>> ends(4);
  std::vector<std::vector<float>> buffers(4, std::vector<float>(kFloats, 1));
  for (uint32_t call = 0; call < 4; ++call) {
    auto* const bytes = reinterpret_cast<std::byte*>(buffers[call].data());
    const auto done = [&, call](const Status& status) {
      if (call / 2 == 1) return ends[call].set_value(status.ok());
      const bool met = second_has_begun_to_end.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
      ends[call].set_value(met && status.ok());
    };
    site.value()->Arrive(*executors_[0], /*run=*/call / 2, /*rank=*/call % 2, {{bytes}, {bytes}},
                         [&, call, done](const Status& status) {
                           if (call == 3) second.set_value();
                           done(status);
                         });
  }
  switches_[0]->Decide(/*commit=*/true);
  for (auto& end : ends) EXPECT_TRUE(end.get_future().get());
}

}  // namespace
}  // namespace jaxcomm

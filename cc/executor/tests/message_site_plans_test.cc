#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 3;
constexpr size_t kFloats = 3000;

class FollowedPlans : public testing::Test {
 protected:
  FollowedPlans() : network_(kProcesses, /*seed=*/1) {
    for (uint32_t process = 0; process < kProcesses; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_.back()->messages());
      executors_.back()->messages().Connect(&network_.transport(process));
      MessageGroup group{{}, "all_reduce/flat/3", {}};
      for (uint32_t rank = 0; rank < kProcesses; ++rank) {
        group.ranks.push_back({rank, 10 * rank});
        group.lists.push_back(rank == process ? registry_.Find(group.list, rank) : nullptr);
      }
      sites_.push_back(MakeSite(/*communicator=*/7, group, process));
      EXPECT_TRUE(sites_.back()->SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[process]->stats()).ok());
      buffers_.emplace_back(kFloats);
    }
  }
  ~FollowedPlans() override { network_.Stop(); }

  static std::shared_ptr<MessageSite> MakeSite(uint64_t communicator, const MessageGroup& group, uint32_t process) {
    auto site = MessageSite::Make({"psum", "data", "auto", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum},
                                  communicator, /*site=*/0, {group}, process);
    EXPECT_TRUE(site.ok()) << site.status().message();
    return site.value();
  }
  PlanSelector& plans(uint32_t process) { return executors_[process]->messages().plans(); }
  void Prepare(uint32_t process, const std::shared_ptr<const PlannedLists>& plan, uint32_t launch) {
    ASSERT_TRUE(plans(process).Prepare(plan, {{7, launch}}));
  }

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
  // Statistics of process 0's calls with a plan: the number of calls, and the seconds from the last arrival to the end.
  int Calls(const std::string& plan) { return static_cast<int>(Statistic(plan, "calls")); }
  double TransferSeconds(const std::string& plan) { return Statistic(plan, "transfer_s"); }
  double Statistic(const std::string& plan, const std::string& name) {
    const std::string json = executors_[0]->stats().Json();
    const size_t at = json.find("\"plan\":\"" + plan + "\"");
    if (at == std::string::npos) return 0;
    const std::string key = "\"" + name + "\":";
    return std::stod(json.substr(json.find(key, at) + key.size()));
  }

  SimulatedNetwork network_;
  MessageRegistry registry_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::shared_ptr<MessageSite>> sites_;
  std::vector<std::vector<float>> buffers_;
};

TEST_F(FollowedPlans, AllProcessesFollowThePlanFromItsLaunchOn) {
  int64_t run = 0;
  for (; run < 3; ++run) Sum(run);
  for (uint32_t process = 0; process < kProcesses; ++process) {
    Prepare(process, Plan("ring", "all_reduce/ring/3"), 4);
    plans(process).Decide(/*commit=*/true);
  }
  for (; run < 6; ++run) Sum(run);
  EXPECT_EQ(Calls("auto"), 4);
  EXPECT_EQ(Calls("ring"), 2);
}

TEST_F(FollowedPlans, OverManyPlansMemoryAndStatisticsStayBounded) {
  constexpr uint32_t kPlans = 1000;
  std::vector<std::weak_ptr<const PlannedLists>> made;
  for (uint32_t run = 0; run < kPlans; ++run) {
    const auto plan = Plan("plan " + std::to_string(run), "all_reduce/ring/3");
    made.push_back(plan);
    for (uint32_t process = 0; process < kProcesses; ++process) {
      Prepare(process, plan, run);
      plans(process).Decide(/*commit=*/true);
    }
    Sum(run);
  }
  const auto alive = std::count_if(made.begin(), made.end(), [](const auto& plan) { return !plan.expired(); });
  EXPECT_LE(alive, 8);
  const std::string json = executors_[0]->stats().Json(/*with_spans=*/false);
  size_t sites = 0;
  for (size_t at = 0; (at = json.find("\"calls\":", at)) != std::string::npos; ++at) ++sites;
  EXPECT_LE(sites, CallSiteStats::kUnused + 4);
  EXPECT_EQ(Calls("plan " + std::to_string(kPlans - 1)), 1);
}

TEST_F(FollowedPlans, ACallWaitsForAProcessThatDoesNotKnowYet) {
  for (uint32_t process = 0; process < kProcesses; ++process) Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
  for (uint32_t process : {0u, 1u}) plans(process).Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  EXPECT_EQ(ends[2].wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  plans(2).Decide(/*commit=*/true);
  ExpectSum(ends);
  EXPECT_EQ(Calls("ring"), 1);
}

TEST_F(FollowedPlans, ProcessesThatFollowOtherPlansAddNothing) {
  Prepare(1, Plan("ring", "all_reduce/ring/3"), 0);
  plans(1).Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  for (auto& end : ends) EXPECT_FALSE(end.get().ok());
}

TEST_F(FollowedPlans, WhereOneProcessCannotKnowTheCallFailsOnAll) {
  for (uint32_t process = 0; process < kProcesses; ++process) Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
  for (uint32_t process : {0u, 1u}) plans(process).Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, 0));
  plans(2).Fail(Status(Code::kInternal, "no answer of process 0"));
  for (auto& end : ends) EXPECT_NE(end.get().message().find("no answer of process 0"), std::string::npos);
}

TEST_F(FollowedPlans, ARankThatWaitsForThePlanIsNamedSo) {
  for (const auto& executor : executors_) executor->SetDeadline(0.3);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
    if (process < 2) plans(process).Decide(/*commit=*/true);
  }
  ends.push_back(Arrive(2, 0));  // process 2 does not know the plan yet
  for (uint32_t process : {0u, 1u}) ends.push_back(Arrive(process, 0));
  for (size_t i : {1, 2}) {
    const std::string message = ends[i].get().message();
    EXPECT_NE(message.find("rank 2 of 3 has not received the call's schedule after "), std::string::npos) << message;
  }
  plans(2).Decide(/*commit=*/true);
  EXPECT_FALSE(ends[0].get().ok());
}

TEST_F(FollowedPlans, TheDeadlineAndTheTransferCountFromTheDecision) {
  for (const auto& executor : executors_) executor->SetDeadline(0.2);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
    ends.push_back(Arrive(process, 0));
  }
  EXPECT_EQ(ends[0].wait_for(std::chrono::milliseconds(600)), std::future_status::timeout);
  for (const auto& executor : executors_) executor->SetDeadline(30);
  const Clock::time_point decided = Clock::now();
  for (uint32_t process = 0; process < kProcesses; ++process) plans(process).Decide(/*commit=*/true);
  ExpectSum(ends);
  EXPECT_EQ(Calls("ring"), 1);
  EXPECT_LE(TransferSeconds("ring"), Seconds(Clock::now() - decided));
}

TEST_F(FollowedPlans, AProcessThatEndsFailsCallsThatWait) {
  Prepare(0, nullptr, 0);
  std::future<Status> end = Arrive(0, 0);
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  network_.Kill(2);
  const std::string message = end.get().message();
  EXPECT_NE(message.find("rank 2 is gone"), std::string::npos) << message;
}

// A rank that knows the plan arrives first. The error names the process that ended, not the missing plan.
TEST_F(FollowedPlans, AProcessThatEndsIsNamedWhereAnotherLacksThePlan) {
  for (uint32_t process : {0u, 1u}) Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
  plans(0).Decide(/*commit=*/true);
  std::vector<std::future<Status>> ends;
  for (uint32_t process : {0u, 1u}) ends.push_back(Arrive(process, 0));
  EXPECT_EQ(ends[1].wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  network_.Kill(2);
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_NE(message.find("rank 2 is gone"), std::string::npos) << message;
  }
}

// Only process 0 switches to the plan. In a job, this happens if a process without a rank in the calls has ended, and
// other processes do not know whether the switch took place.
TEST_F(FollowedPlans, CallsOfFewerRanksThanThePlanFollowNoSwitch) {
  for (uint32_t process : {0u, 1u}) {
    MessageGroup pair{{{0, 0}, {1, 10}}, "all_reduce/direct/2", {}};
    for (uint32_t rank : {0u, 1u}) pair.lists.push_back(registry_.Find(pair.list, rank));
    sites_[process] = MakeSite(/*communicator=*/7, pair, process);
    ASSERT_TRUE(sites_[process]->SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[process]->stats()).ok());
    Prepare(process, Plan("ring", "all_reduce/ring/3"), 0);
    plans(process).Decide(/*commit=*/process == 0);
  }
  std::vector<std::future<Status>> ends;
  for (uint32_t process : {0u, 1u}) ends.push_back(Arrive(process, 0));
  for (auto& end : ends) {
    const Status status = end.get();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(FollowedPlans, ACallThatWaitsEndsWhenItsProcessLeaves) {
  Prepare(0, nullptr, 0);
  std::future<Status> end = Arrive(0, 0);
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  const Status left = executors_[0]->messages().Disconnect(Clock::now() + std::chrono::seconds(30));
  EXPECT_TRUE(left.ok()) << left.message();
  EXPECT_NE(end.get().message().find("has left the job"), std::string::npos);
  EXPECT_TRUE(plans(0).Next().empty());
}

// XLA's callbacks may block, because they run the rest of a device's program.
TEST_F(FollowedPlans, CallsThatHaveWaitedMayBlockWhereTheyEnd) {
  const MessageGroup here{{{0, 0}, {0, 1}},
                          "all_reduce/flat/2",
                          {registry_.Find("all_reduce/flat/2", 0), registry_.Find("all_reduce/flat/2", 1)}};
  const auto site = MakeSite(/*communicator=*/8, here, /*process=*/0);
  ASSERT_TRUE(site->SetLeaves({{DType::kF32, 4 * kFloats}}, executors_[0]->stats()).ok());
  ASSERT_TRUE(plans(0).Prepare(nullptr, {{8, 0}}));
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
    site->Arrive(*executors_[0], /*run=*/call / 2, /*rank=*/call % 2, {{bytes}, {bytes}},
                 [&, call, done](const Status& status) {
                   if (call == 3) second.set_value();
                   done(status);
                 });
  }
  plans(0).Decide(/*commit=*/true);
  for (auto& end : ends) EXPECT_TRUE(end.get_future().get());
}

}  // namespace
}  // namespace jaxcomm

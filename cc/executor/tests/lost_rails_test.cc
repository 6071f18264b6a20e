// Calls while a host lacks a rail.
#include "cc/executor/decide/lost_rails.h"

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/testing/selecting_processes.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRanks = 4;
constexpr uint32_t kRails = 2;

// One rank per process. Schedule 1 + 2 · r + rail is for calls while rank r's host lacks the rail. The lists alternate,
// so that a call fails if ranks run different schedules.
class LostRailsTest : public SelectingProcesses<kRanks> {
 protected:
  void Start(uint32_t seed, std::vector<uint32_t> hosts = {0, 1, 2, 3},
             ScheduleSelector::Rule rule = ScheduleSelector::kNoLateRank) {
    hosts_ = std::move(hosts);
    std::vector<std::string> lists{"all_reduce/flat/4"};
    if (rule.rank != ScheduleSelector::kNoRank) lists.push_back("all_reduce/ring/4");
    std::vector<ScheduleSelector::LostRail> lost_rails;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      for (uint32_t rail = 0; rail < kRails; ++rail) {
        lost_rails.push_back({rank, rail, static_cast<uint32_t>(lists.size())});
        lists.push_back(lists.size() % 2 == 0 ? "all_reduce/direct/4" : "all_reduce/ring/4");
      }
    }
    SelectingProcesses::Start(seed, lists, rule, lost_rails);
  }
  // Notifies both processes that the rail between them has been fenced, or is open again.
  void Change(uint32_t one, uint32_t other, uint32_t rail, bool is_open) {
    executors_[one]->messages().OnRail(other, rail, is_open);
    executors_[other]->messages().OnRail(one, rail, is_open);
  }
  void ChangeHost(uint32_t process, uint32_t rail, bool is_open) {
    for (uint32_t other = 0; other < kRanks; ++other) {
      if (other != process) Change(process, other, rail, is_open);
    }
  }
  void Sum(int64_t run) {
    std::vector<std::vector<float>> values;
    std::vector<std::future<Status>> ends;
    std::mt19937 random(static_cast<uint32_t>(run));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      values.emplace_back(kElements);
      for (float& value : values.back()) value = std::uniform_real_distribution<float>(-1, 1)(random);
    }
    std::vector<double> sum(kElements);
    for (const auto& each : values) {
      for (size_t i = 0; i < kElements; ++i) sum[i] += each[i];
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) ends.push_back(Arrive(rank, values[rank], run));
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const auto& each : values) EXPECT_EQ(std::memcmp(each.data(), values[0].data(), 4 * kElements), 0);
    for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(values[0][i], sum[i], 1e-5) << i;
  }
  // The schedule of the call in launch `run`, as rank 3 knows it.
  std::optional<uint32_t> ScheduleOf(uint32_t run) { return sites_[3]->selector()->Find({77, run, 0, 0}); }
  static uint32_t For(uint32_t rank, uint32_t rail) { return 1 + kRails * rank + rail; }
};

TEST_F(LostRailsTest, OneHostIsFoundFromEachOfItsLinks) {
  Start(/*seed=*/1);
  LostRails lost;
  const MessageSite& site = *sites_[0];
  EXPECT_EQ(lost.Find(site), std::nullopt);
  lost.Change(2, 1, false);
  EXPECT_EQ(lost.Find(site), For(2, 1));
  lost.Change(1, 1, false);
  EXPECT_EQ(lost.Find(site), std::nullopt);  // the rail is fenced to two of the three other hosts
  lost.Change(3, 1, false);
  EXPECT_EQ(lost.Find(site), For(0, 1));  // fenced to all other hosts, so this host lacks the rail
  lost.Change(3, 0, false);
  EXPECT_EQ(lost.Find(site), std::nullopt);  // two rails are fenced
  for (const uint32_t process : {1, 2, 3}) lost.Change(process, 1, true);
  EXPECT_EQ(lost.Find(site), For(3, 0));
  lost.Clear();
  EXPECT_EQ(lost.Find(site), std::nullopt);
  lost.Change(9, 1, false);  // process 9 has no rank in the calls
  EXPECT_EQ(lost.Find(site), std::nullopt);
}

TEST_F(LostRailsTest, OfTwoHostsEitherMayBeTheOne) {
  Start(/*seed=*/1, {0, 0, 1, 1});
  LostRails lost;
  lost.Change(2, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), std::nullopt);
  lost.Change(3, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), std::nullopt);
}

TEST_F(LostRailsTest, OfAHostAllProcessesLackTheRail) {
  Start(/*seed=*/1, {0, 1, 1, 2});
  LostRails lost;
  lost.Change(1, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), std::nullopt);
  lost.Change(2, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), For(1, 1));
  lost.Change(3, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), For(0, 1));
  lost.Change(2, 1, true);
  EXPECT_EQ(lost.Find(*sites_[0]), std::nullopt);
}

TEST_F(LostRailsTest, ProcessesOfItsOwnHostAreNoHostsLoss) {
  Start(/*seed=*/1, {0, 0, 1, 2});
  LostRails lost;
  lost.Change(1, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), std::nullopt);
  lost.Change(2, 1, false);
  EXPECT_EQ(lost.Find(*sites_[0]), For(2, 1));
}

TEST(LostRailSchedules, TheSecondCallAfterAFenceRunsThePreparedSchedule) {
  ScheduleSelector decider(ScheduleSelector::kNoLateRank, 0, {{2, 1, 1}}), other(ScheduleSelector::kNoLateRank);
  std::vector<uint32_t> run;
  for (uint32_t launch = 0; launch < 8; ++launch) {
    const bool lacks_rail = launch >= 2 && launch < 5;
    const CallId call{77, launch, 0, 0};
    const auto decision = decider.Decide(call, decider.first(), lacks_rail ? std::optional<uint32_t>(1) : std::nullopt);
    EXPECT_EQ(other.Find(call).value_or(decision->schedule), decision->schedule);
    other.Receive(call, *decision);
    run.push_back(decision->schedule);
  }
  EXPECT_EQ(run, (std::vector<uint32_t>{0, 0, 0, 1, 1, 1, 0, 0}));
}

TEST(LostRailSchedules, ATrialGoesOnAfterwards) {
  const auto trial = std::make_shared<Trial>();
  ScheduleSelector decider(ScheduleSelector::kTrial, 0, {{2, 1, 2}});
  decider.Try(trial);
  int lacking = 0;
  for (uint32_t launch = 0; launch < 200; ++launch) {
    const bool lacks_rail = launch / 20 % 2 == 1;
    const auto decision = decider.Decide({77, launch, 0, 0}, 1, lacks_rail ? std::optional<uint32_t>(2) : std::nullopt);
    lacking += decision->schedule == 2 ? 1 : 0;
    const Clock::time_point at(std::chrono::milliseconds(100 * launch));
    // The transfer times in seconds, by schedule. If transfers of the schedule for a lost rail counted, the trial would
    // drop the plan.
    constexpr double kTransfers[] = {0.02, 0.01, 0.5};
    decider.RecordCall(
        3, [&](uint32_t) { return at; }, decision->schedule, kTransfers[decision->schedule]);
  }
  EXPECT_GT(lacking, 90);
  EXPECT_EQ(trial->outcome(), Trial::Outcome::kKept);
}

TEST_F(LostRailsTest, CallsRunTheScheduleOfTheHostThatLacksARail) {
  Start(/*seed=*/2);
  int64_t run = 0;
  for (uint32_t host = 0; host < kRanks; ++host) {
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      EXPECT_FALSE(others_[3][For(host, rail) - 1]->has_graphs());  // graphs are made at the first call
      ChangeHost(host, rail, false);
      for (int i = 0; i < 3; ++i) Sum(run++);
      EXPECT_EQ(ScheduleOf(static_cast<uint32_t>(run - 1)), For(host, rail));
      ChangeHost(host, rail, true);
      for (int i = 0; i < 3; ++i) Sum(run++);
      EXPECT_EQ(ScheduleOf(static_cast<uint32_t>(run - 1)), ScheduleSelector::kDefault);
    }
  }
}

TEST_F(LostRailsTest, AFenceBetweenTwoOtherHostsChangesNothing) {
  Start(/*seed=*/3);
  Change(1, 2, 0, false);
  for (int64_t run = 0; run < 4; ++run) Sum(run);
  EXPECT_EQ(ScheduleOf(3), ScheduleSelector::kDefault);
}

// Covers sites without a late rank, sites in a trial, and sites with a rank that may be late.
TEST_F(LostRailsTest, AllRunTheSameWheneverRailsAreFenced) {
  const ScheduleSelector::Rule rules[] = {ScheduleSelector::kNoLateRank, ScheduleSelector::kTrial, {2, 0.0003}};
  for (uint32_t seed = 0; seed < 6; ++seed) {
    Start(seed, {0, 1, 2, 3}, rules[seed % 3]);
    std::vector<std::thread> processes;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      processes.emplace_back([this, rank, seed] {
        std::mt19937 random(10 * seed + rank);
        SumInLoop(rank, 100, [&](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000)); });
      });
    }
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
      ChangeHost(random() % kRanks, random() % kRails, random() % 2 == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
    }
    for (std::thread& process : processes) process.join();
    for (uint32_t process = 1; process < kRanks; ++process) {
      EXPECT_EQ(DefaultCallsAt(process), DefaultCallsAt(0));
      EXPECT_EQ(LostRailCallsAt(process), LostRailCallsAt(0));
    }
    network_->Stop();
    sites_.clear();
    others_.clear();
    executors_.clear();
    network_.reset();
  }
}

}  // namespace
}  // namespace jaxcomm

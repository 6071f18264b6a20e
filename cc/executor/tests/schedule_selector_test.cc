#include "cc/executor/decide/schedule_selector.h"

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/executor/testing/selecting_processes.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

constexpr CallId Call(uint32_t launch, uint32_t iteration = 0) { return {77, launch, 0, iteration}; }

void See(ScheduleSelector& selector, milliseconds lateness) {
  const std::vector<Clock::time_point> arrivals{Clock::time_point(milliseconds(3)), Clock::time_point(milliseconds(7)),
                                                Clock::time_point(milliseconds(7) + lateness)};
  selector.RecordCall(
      3, [&](uint32_t rank) { return arrivals[rank]; }, /*schedule=*/1, /*transfer=*/0);
}

// Decides a call that has not been decided yet.
ScheduleSelector::Decision Decide(ScheduleSelector& selector, const CallId& call) {
  return *selector.Decide(call, /*schedule=*/1);
}

TEST(ScheduleSelector, FollowsTheCallThatEndedLast) {
  ScheduleSelector selector({/*rank=*/2, /*seconds=*/0.01});
  EXPECT_EQ(selector.Next(), 1u);
  See(selector, milliseconds(9));
  EXPECT_EQ(selector.Next(), 0u);
  See(selector, milliseconds(10));
  EXPECT_EQ(selector.Next(), 1u);
  See(selector, milliseconds(-5));
  EXPECT_EQ(selector.Next(), 0u);
}

TEST(ScheduleSelector, ARankDecidesThatIsNotLate) {
  EXPECT_EQ(ScheduleSelector({2, 0.01}).decider(), 0u);
  EXPECT_EQ(ScheduleSelector({0, 0.01}).decider(), 1u);
}

TEST(ScheduleSelector, TheNextCallRunsAsAnnounced) {
  ScheduleSelector selector({2, 0.01});
  EXPECT_EQ(selector.Find(Call(0)), std::nullopt);
  See(selector, milliseconds(0));
  const ScheduleSelector::Decision first = Decide(selector, Call(0));
  EXPECT_EQ(first.schedule, 1u);
  EXPECT_EQ(first.next, 0u);
  See(selector, milliseconds(20));  // has no effect on call 1, which is already decided
  const ScheduleSelector::Decision second = Decide(selector, Call(1));
  EXPECT_EQ(second.schedule, 0u);
  EXPECT_EQ(second.next, 1u);
  EXPECT_EQ(selector.Find(Call(2)), 1u);
  EXPECT_EQ(selector.Find(Call(0, /*iteration=*/1)), 0u);  // the next call of a loop in the same launch
}

TEST(ScheduleSelector, WhereOtherCallSitesShareTheLaunchesTheNextCallIsAsManyLaterAsThisOne) {
  ScheduleSelector selector({2, 0.01});
  See(selector, milliseconds(0));
  EXPECT_EQ(Decide(selector, Call(3)).schedule, 1u);
  EXPECT_EQ(Decide(selector, Call(6)).launches, 3u);
  EXPECT_EQ(selector.Find(Call(7)), std::nullopt);
  EXPECT_EQ(selector.Find(Call(9)), 0u);
  EXPECT_EQ(Decide(selector, Call(9)).schedule, 0u);
  EXPECT_EQ(Decide(selector, Call(14)).schedule, 1u);  // the schedule of launch 14 was not announced
}

TEST(ScheduleSelector, TheFirstAnnouncementHolds) {
  ScheduleSelector selector({2, 0.01});
  selector.Receive(Call(1), {1, 0, 3});
  selector.Receive(Call(3), {1, 1, 1});
  EXPECT_EQ(selector.Find(Call(4)), 0u);
  selector.Receive(Call(4), {1, 1, 1});
  EXPECT_EQ(selector.Find(Call(4)), 1u);  // launch 4's own decision has arrived
}

TEST(ScheduleSelector, ADecisionThatWasNotAnnouncedHoldsInTheNextAnnouncement) {
  ScheduleSelector decider({2, 0.01}), other({2, 0.01});
  other.Receive(Call(5), Decide(decider, Call(5)));
  See(decider, milliseconds(0));
  Decide(decider, Call(7));  // also decides launch 9; the decision is not announced, as if call 7 had failed
  See(decider, milliseconds(20));
  other.Receive(Call(8), Decide(decider, Call(8)));
  EXPECT_EQ(decider.Find(Call(9)), 0u);
  EXPECT_EQ(other.Find(Call(9)), 0u);
}

TEST(ScheduleSelector, DeciderAndReceiversKnowTheSame) {
  ScheduleSelector decider({2, 0.01}), other({2, 0.01});
  std::mt19937 random(7);
  for (uint32_t launch = 0; launch < 5000; ++launch) {
    See(decider, milliseconds(random() % 20));
    EXPECT_EQ(other.Find(Call(launch)), decider.Find(Call(launch)));
    other.Receive(Call(launch), Decide(decider, Call(launch)));
  }
  EXPECT_EQ(other.Find(Call(10)), std::nullopt);  // this decision is too old, so it is no longer kept
  EXPECT_EQ(other.Find(Call(6000)), std::nullopt);
}

// Runs calls one after the other. Schedule 1 takes `plan_ms`, the default schedule 20 ms. Returns the number of calls
// that ran the default schedule.
int Try(ScheduleSelector& selector, double plan_ms, int calls) {
  int others = 0;
  for (int call = 0; call < calls; ++call) {
    const uint32_t schedule = *selector.Next();
    const Clock::time_point end(milliseconds(100 * call));
    selector.RecordCall(
        3, [&](uint32_t) { return end; }, schedule, (schedule == 0 ? 20 : plan_ms) / 1e3);
    others += schedule == 0 ? 1 : 0;
  }
  return others;
}

TEST(ScheduleSelector, WithATrialTheFasterScheduleStays) {
  const auto trial = std::make_shared<Trial>();
  ScheduleSelector gains(ScheduleSelector::kTrial);
  gains.Try(trial);
  EXPECT_NEAR(Try(gains, 10, 100), 18, 4);
  EXPECT_EQ(Try(gains, 10, 100), 0);
  EXPECT_EQ(trial->outcome(), Trial::Outcome::kKept);

  ScheduleSelector another(ScheduleSelector::kTrial);  // shares the trial, so it runs no new trial
  another.Try(trial);
  EXPECT_EQ(Try(another, 10, 100), 0);

  ScheduleSelector slower(ScheduleSelector::kTrial);
  slower.Try(std::make_shared<Trial>());
  Try(slower, 30, 100);
  EXPECT_EQ(Try(slower, 30, 100), 100);
}

TEST(ScheduleSelector, WithoutStatisticsNothingIsTried) {
  ScheduleSelector selector(ScheduleSelector::kTrial);
  EXPECT_EQ(Try(selector, 30, 100), 0);
  ScheduleSelector fixed({1, ScheduleSelector::kTrial.seconds, /*tries=*/false});
  fixed.Try(std::make_shared<Trial>());
  EXPECT_EQ(Try(fixed, 30, 100), 0);
}

TEST(ScheduleSelector, OnlyLateCallsSayWhatAScheduleForThemGains) {
  const auto trial = std::make_shared<Trial>();
  ScheduleSelector selector({2, 0.01, /*tries=*/true});
  selector.Try(trial);
  for (int call = 0; call < 200; ++call) {
    selector.Next();
    See(selector, milliseconds(5));
  }
  EXPECT_FALSE(trial->has_begun());
}

TEST(ScheduleSelector, InATrialReceiversKnowTheDecidersSchedule) {
  const auto trial = std::make_shared<Trial>(), others_trial = std::make_shared<Trial>();
  ScheduleSelector decider(ScheduleSelector::kTrial), other(ScheduleSelector::kTrial);
  decider.Try(trial);
  other.Try(others_trial);
  for (uint32_t launch = 0; launch < 200; ++launch) {
    const std::optional<uint32_t> known = other.Find(Call(launch));
    const ScheduleSelector::Decision decision = Decide(decider, Call(launch));
    EXPECT_EQ(known.has_value(), launch > 0);
    EXPECT_EQ(known.value_or(decision.schedule), decision.schedule);
    const Clock::time_point end(milliseconds(100 * launch));
    for (ScheduleSelector* each : {&decider, &other}) {
      each->RecordCall(
          3, [&](uint32_t) { return end; }, decision.schedule, decision.schedule == 0 ? 0.02 : 0.03);
    }
    other.Receive(Call(launch), decision);
  }
  EXPECT_EQ(others_trial->outcome(), Trial::Outcome::kDropped);
  EXPECT_EQ(other.Find(Call(200)), 0u);
  other.Receive(Call(3), {1, 1, 1, Trial::Outcome::kOpen});  // an old decision changes nothing
  EXPECT_EQ(others_trial->outcome(), Trial::Outcome::kDropped);
}

// Three processes with one rank each. Rank 2 may be late, and rank 0 decides. The default list of messages is direct,
// the other list is ring.
class BetweenProcesses : public SelectingProcesses<3> {
 protected:
  static constexpr double kBelow = 0.01;

  void Start(uint32_t seed) {
    SelectingProcesses::Start(seed, {"all_reduce/direct/3", "all_reduce/ring/3"}, {2, kBelow});
    for (uint32_t rank = 0; rank < 3; ++rank) values_.emplace_back(kElements, static_cast<float>(rank));
  }
  // Runs a launch in which the ranks join only a call of another site.
  void Skip(int64_t run) {
    std::vector<std::promise<Status>> ends(3);
    std::vector<float> values(3, 1.0f);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const auto another = MakeSite("all_reduce/ring/3", rank, /*site=*/1);
      EXPECT_TRUE(another->SetLeaves({{DType::kF32, 4}}, executors_[rank]->stats()).ok());
      auto* const bytes = reinterpret_cast<std::byte*>(&values[rank]);
      executors_[rank]->messages().Arrive(another, run, rank, {{bytes}, {bytes}},
                                          [&ends, rank](const Status& status) { ends[rank].set_value(status); });
    }
    for (auto& end : ends) EXPECT_TRUE(end.get_future().get().ok());
  }

  std::vector<std::vector<float>> values_;
};

TEST_F(BetweenProcesses, AllRunTheSameInAnyOrderOfArrival) {
  Start(/*seed=*/3);
  std::mt19937 random(3);
  std::vector<std::thread> processes;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    processes.emplace_back([this, rank, seed = random()] {
      std::mt19937 mine(seed);
      SumInLoop(rank, 60, [&](int64_t run) {
        std::this_thread::sleep_for(std::chrono::microseconds(mine() % 300));
        if (rank == 2 && run % 24 < 12) std::this_thread::sleep_for(milliseconds(15));
      });
    });
  }
  for (std::thread& process : processes) process.join();
  EXPECT_GT(DefaultCallsAt(0), 0);
  EXPECT_LT(DefaultCallsAt(0), 60);
  EXPECT_EQ(DefaultCallsAt(1), DefaultCallsAt(0));
  EXPECT_EQ(DefaultCallsAt(2), DefaultCallsAt(0));
}

TEST_F(BetweenProcesses, ARankWithoutADecisionWaitsForTheDecider) {
  Start(/*seed=*/4);
  Skip(0);
  std::future<Status> second = Arrive(1, values_[1], 1), third = Arrive(2, values_[2], 1);
  EXPECT_TRUE(IsWaiting(second));
  std::future<Status> first = Arrive(0, values_[0], 1);
  for (auto* end : {&first, &second, &third}) EXPECT_TRUE(end->get().ok());
  for (const auto& each : values_) EXPECT_EQ(each, std::vector<float>(kElements, 3.0f));
}

// Ranks 0 and 1 are in one process, and the test itself passes the call's id. Rank 1 arrives first, waits until rank 0
// arrives and decides the schedule, and then starts on rank 0's thread.
TEST(NamedCalls, ARankWaitsForTheDeciderOfItsOwnProcess) {
  const std::vector<uint32_t> processes = {0, 0, 1};
  MessageRegistry registry;
  SimulatedNetwork network(2, /*seed=*/7);
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<std::shared_ptr<MessageSite>> sites;
  for (uint32_t process = 0; process < 2; ++process) {
    executors.push_back(std::make_unique<Executor>(1));
    network.Connect(process, &executors[process]->messages());
    executors[process]->messages().Connect(&network.transport(process));
    std::vector<std::shared_ptr<MessageSite>> made;
    for (const std::string list : {"all_reduce/direct/3", "all_reduce/ring/3"}) {
      MessageGroup group{{}, list, {}};
      for (uint32_t rank = 0; rank < 3; ++rank) {
        group.ranks.push_back({processes[rank], 10 * rank});
        group.lists.push_back(processes[rank] == process ? registry.Find(list, rank) : nullptr);
      }
      made.push_back(MessageSite::Make({"psum", "data", "plan", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 77,
                                       0, {group}, process)
                         .value());
    }
    const std::vector<std::shared_ptr<MessageSite>> late{made[1]};
    made[0]->SelectFrom(late, executors[process]->messages().SelectorOf(*made[0], late, {2, 0.01}, 0));
    EXPECT_TRUE(made[0]->SetLeaves({{DType::kF32, 4 * 3000}}, executors[process]->stats()).ok());
    sites.push_back(made[0]);
  }
  std::vector<std::vector<float>> values(3, std::vector<float>(3000, 1.0f));
  std::vector<std::promise<Status>> ends(3);
  for (const uint32_t rank : {1u, 2u, 0u}) {
    auto* const bytes = reinterpret_cast<std::byte*>(values[rank].data());
    executors[processes[rank]]->messages().Arrive(
        sites[processes[rank]], CallId{77, 1, 0, 0}, rank, {{bytes}, {bytes}},
        [&ends, rank](const Status& status) { ends[rank].set_value(status); });
  }
  for (auto& end : ends) {
    std::future<Status> ended = end.get_future();
    ASSERT_EQ(ended.wait_for(std::chrono::seconds(50)), std::future_status::ready);
    const Status status = ended.get();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  for (const auto& each : values) EXPECT_EQ(each, std::vector<float>(3000, 3.0f));
  network.Stop();
}

TEST_F(BetweenProcesses, WithoutTheDeciderCallsEndAtTheDeadline) {
  Start(/*seed=*/5);
  Skip(0);
  for (const auto& executor : executors_) executor->SetDeadline(0.3);
  std::future<Status> second = Arrive(1, values_[1], 1), third = Arrive(2, values_[2], 1);
  for (auto* end : {&second, &third}) {
    const std::string message = end->get().message();
    EXPECT_NE(message.find("rank 0 of 3 has not arrived after "), std::string::npos) << message;
  }
  EXPECT_EQ(Arrive(0, values_[0], 1).get().code(), Code::kDeadlineExceeded);
  for (const auto& executor : executors_) executor->SetDeadline(60);
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 3; ++rank) ends.push_back(Arrive(rank, values_[rank], 2));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
}

TEST_F(BetweenProcesses, IfTheDecidersProcessEndsSoDoTheCalls) {
  Start(/*seed=*/6);
  Skip(0);
  std::future<Status> before = Arrive(1, values_[1], 1);
  EXPECT_TRUE(IsWaiting(before));
  network_->Kill(0);
  const std::string message = before.get().message();
  EXPECT_NE(message.find("rank 0 is gone"), std::string::npos) << message;
  EXPECT_FALSE(Arrive(2, values_[2], 1).get().ok());  // the call begins after process 0 has died
}

TEST_F(BetweenProcesses, AnotherProcessThatEndsIsNamedBeforeTheDeciderComes) {
  Start(/*seed=*/7);
  Skip(0);
  std::future<Status> before = Arrive(1, values_[1], 1);
  EXPECT_TRUE(IsWaiting(before));
  network_->Kill(2);
  const std::string message = before.get().message();
  EXPECT_NE(message.find("rank 2 is gone"), std::string::npos) << message;
}

// Rank 2 announces that it waits, then stops.
TEST_F(BetweenProcesses, ARankThatStopsWhileItWaitsIsNamedAtTheDeadline) {
  Start(/*seed=*/8);
  for (const auto& executor : executors_) executor->SetDeadline(0.3);
  for (uint32_t process = 0; process < 2; ++process) {
    const Arrival waits{{77, 0, 0, 0}, 2, 20, sites_[2]->fingerprint(), sites_[2]->text(), /*waits=*/true};
    executors_[process]->messages().OnNotice(2, Encode(waits));
  }
  std::future<Status> second = Arrive(1, values_[1], 0), first = Arrive(0, values_[0], 0);
  for (auto* end : {&first, &second}) {
    const std::string message = end->get().message();
    EXPECT_NE(message.find("rank 2 of 3 has not received the call's schedule after "), std::string::npos) << message;
  }
}

TEST_F(BetweenProcesses, OneSelectorIsForOneRuleAndTheSameLists) {
  Start(/*seed=*/9);
  const MessageSite& site = *sites_[0];
  const auto& other = others_[0];
  Executor& executor = *executors_[0];
  EXPECT_EQ(executor.messages().SelectorOf(site, other, {2, kBelow}, 0).get(), site.selector());
  EXPECT_NE(executor.messages().SelectorOf(site, other, {0, kBelow}, 0).get(), site.selector());
  EXPECT_NE(executor.messages().SelectorOf(site, other, {2, 2 * kBelow}, 0).get(), site.selector());
  EXPECT_NE(executor.messages().SelectorOf(*other[0], {sites_[0]}, {2, kBelow}, 0).get(), site.selector());
}

}  // namespace
}  // namespace jaxcomm

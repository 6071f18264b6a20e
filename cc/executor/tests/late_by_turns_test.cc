// Calls at which any rank may be late.
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

#include "cc/executor/decide/schedule_selector.h"
#include "cc/executor/executor.h"
#include "cc/executor/testing/selecting_processes.h"
#include "cc/program/message_registry.h"
#include "cc/program/testing/by_hand.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kRanks = 4;
constexpr size_t kElements = 3000;

constexpr CallId Call(uint32_t launch) { return {77, launch, 0, 0}; }

// Returns operands whose sum depends on the order of the additions.
std::vector<float> Operand(uint32_t rank, uint32_t seed = 0) {
  std::mt19937 random(1000 * seed + rank);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> operand(kElements);
  for (float& value : operand) value = values(random);
  return operand;
}

void ExpectSums(const std::vector<std::vector<float>>& results, uint32_t seed = 0) {
  for (const auto& result : results) EXPECT_EQ(std::memcmp(result.data(), results[0].data(), 4 * kElements), 0);
  std::vector<double> sum(kElements);
  for (uint32_t rank = 0; rank < results.size(); ++rank) {
    const std::vector<float> operand = Operand(rank, seed);
    for (size_t i = 0; i < kElements; ++i) sum[i] += operand[i];
  }
  for (size_t i = 0; i < kElements; ++i) ASSERT_NEAR(results[0][i], sum[i], 1e-5) << i;
}

TEST(LateByTurns, TheMissingRankNamesTheSchedule) {
  EXPECT_EQ(ScheduleSelector::FindMissing({true, true, true}), 0u);
  EXPECT_EQ(ScheduleSelector::FindMissing({false, true, true}), 1u);
  EXPECT_EQ(ScheduleSelector::FindMissing({true, true, false}), 3u);
  EXPECT_EQ(ScheduleSelector::FindMissing({true, false, false}), std::nullopt);
}

TEST(LateByTurns, ACallIsDecidedOnce) {
  ScheduleSelector decider({ScheduleSelector::kAnyRank, 0.001}), other({ScheduleSelector::kAnyRank, 0.001});
  const auto first = decider.Decide(Call(0), /*schedule=*/3);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->schedule, 3u);
  EXPECT_EQ(first->next, std::nullopt);
  EXPECT_FALSE(decider.Decide(Call(0), /*schedule=*/0));
  other.Receive(Call(0), *first);
  other.Receive(Call(0), {1});
  EXPECT_EQ(other.Find(Call(0)), 3u);
  EXPECT_EQ(other.Find(Call(1)), std::nullopt);
}

TEST(LateByTurns, InATrialTheDefaultSchedulesTurnIsAnnounced) {
  const auto trial = std::make_shared<Trial>();
  ScheduleSelector decider({ScheduleSelector::kAnyRank, 0.001, /*tries=*/true}),
      other({ScheduleSelector::kAnyRank, 0.001, /*tries=*/true});
  decider.Try(trial);
  other.Try(std::make_shared<Trial>());
  int announced = 0, defaults = 0;
  for (uint32_t launch = 0; launch < 200; ++launch) {
    const std::optional<uint32_t> known = other.Find(Call(launch));
    EXPECT_EQ(known, decider.Find(Call(launch)));
    const auto decision = decider.Decide(Call(launch), /*schedule=*/2);
    EXPECT_TRUE(decision->schedule == 0 || decision->schedule == 2);
    EXPECT_EQ(known.value_or(decision->schedule), decision->schedule);
    announced += known ? 1 : 0;
    defaults += decision->schedule == 0 ? 1 : 0;
    other.Receive(Call(launch), *decision);
    // Rank 1 arrives 50 ms after the other ranks. A transfer takes 10 ms with the default schedule, otherwise 20 ms.
    const Clock::time_point at(milliseconds(100 * launch));
    decider.RecordCall(
        3, [&](uint32_t rank) { return rank == 1 ? at + milliseconds(50) : at; }, decision->schedule,
        decision->schedule == 0 ? 0.01 : 0.02);
  }
  EXPECT_EQ(trial->outcome(), Trial::Outcome::kDropped);
  EXPECT_GT(defaults, 150);
  EXPECT_GE(announced, defaults - 1);
  EXPECT_EQ(other.Find(Call(200)), 0u);  // known before the call, so that no rank waits
}

// A program that first adds the chunks of all ranks but the late one, and then adds the late rank's chunks to these
// sums.
std::shared_ptr<const Program> Joins(uint32_t late) {
  std::vector<uint32_t> others;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank != late) others.push_back(rank);
  }
  std::vector<PlainOp> ops;
  for (uint32_t chunk = 0; chunk < others.size(); ++chunk)
    ops.push_back({others[chunk], chunk, others, {others[chunk]}, {}});
  for (uint32_t chunk = 0; chunk < others.size(); ++chunk) {
    ops.push_back({late, chunk, {others[chunk], late}, Everybody(kRanks), {chunk}});
  }
  return ByHand(kRanks, static_cast<uint32_t>(others.size()), ops);
}

class WithinAProcess : public testing::Test {
 protected:
  void Start(double seconds) {
    site_ = std::make_shared<LocalSite>("psum", "data", "plan", Kind::kAllReduce, Reduction::kSum,
                                        DirectByHand(kRanks, kRanks));
    std::vector<std::shared_ptr<const Program>> programs;
    for (uint32_t late = 0; late < kRanks; ++late) programs.push_back(Joins(late));
    site_->SelectFrom(programs, {ScheduleSelector::kAnyRank, seconds});
    ASSERT_TRUE(site_->SetLeaves({{DType::kF32, 4 * kElements}}, executor_.stats()).ok());
  }
  std::future<Status> Arrive(uint32_t rank, std::vector<float>& values, int64_t run) {
    const auto end = std::make_shared<std::promise<Status>>();
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    executor_.local().Arrive({run, 0}, site_, rank, {{bytes}, {bytes}},
                             [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }

  Executor executor_{2};
  std::shared_ptr<LocalSite> site_;
};

TEST_F(WithinAProcess, TheOthersWorkWhileAnyRankIsAway) {
  Start(/*seconds=*/0);
  for (uint32_t late = 0; late < kRanks; ++late) {
    std::vector<std::vector<float>> values;
    for (uint32_t rank = 0; rank < kRanks; ++rank) values.push_back(Operand(rank));
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank != late) ends.push_back(Arrive(rank, values[rank], late));
    }
    std::this_thread::sleep_for(milliseconds(20));
    ends.push_back(Arrive(late, values[late], late));
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
    ExpectSums(values);
    EXPECT_FALSE(site_->stats().Last()->is_early);
    EXPECT_GT(site_->stats().Last()->early_share, 0.3);
  }
}

TEST_F(WithinAProcess, WithinTheGraceNoRankIsMissing) {
  Start(/*seconds=*/30);
  std::vector<std::vector<float>> values;
  for (uint32_t rank = 0; rank < kRanks; ++rank) values.push_back(Operand(rank));
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < kRanks; ++rank) ends.push_back(Arrive(rank, values[rank], 0));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  ExpectSums(values);
  EXPECT_TRUE(site_->stats().Last()->is_early);
}

TEST_F(WithinAProcess, AfterTheGraceTheOthersBegin) {
  Start(/*seconds=*/0.01);
  std::vector<std::vector<float>> values;
  for (uint32_t rank = 0; rank < kRanks; ++rank) values.push_back(Operand(rank));
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 1; rank < kRanks; ++rank) ends.push_back(Arrive(rank, values[rank], 0));
  std::this_thread::sleep_for(milliseconds(150));
  ends.push_back(Arrive(0, values[0], 0));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  ExpectSums(values);
  EXPECT_FALSE(site_->stats().Last()->is_early);
}

TEST_F(WithinAProcess, RanksOfAnUndecidedCallFailAtTheDeadline) {
  Start(/*seconds=*/0);
  executor_.SetDeadline(0.2);
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0u, 2u}) ends.push_back(Arrive(rank, values[rank], 0));
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_NE(message.find("ranks 1,3 of 4 have not arrived"), std::string::npos) << message;
  }
  for (const uint32_t rank : {1u, 3u}) EXPECT_FALSE(Arrive(rank, values[rank], 0).get().ok());
}

TEST_F(WithinAProcess, LoopsOfThreadsAgreeInAnyOrder) {
  Start(/*seconds=*/0.0002);
  constexpr int kCalls = 200;
  std::vector<std::vector<std::vector<float>>> values(kCalls, std::vector<std::vector<float>>(kRanks));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(rank);
      for (int call = 0; call < kCalls; ++call) {
        auto& mine = values[static_cast<size_t>(call)][rank];
        mine = Operand(rank, static_cast<uint32_t>(call));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
        EXPECT_TRUE(Arrive(rank, mine, /*run=*/0).get().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t call = 0; call < kCalls; ++call) ExpectSums(values[call], call);
}

// Four processes with one rank each. The lists for late ranks alternate between ring and direct, so that a call fails
// if ranks run different schedules.
class BetweenProcesses : public SelectingProcesses<kRanks> {
 protected:
  void Start(uint32_t seed, double seconds = 0) {
    SelectingProcesses::Start(
        seed,
        {"all_reduce/flat/4", "all_reduce/ring/4", "all_reduce/direct/4", "all_reduce/ring/4", "all_reduce/direct/4"},
        {ScheduleSelector::kAnyRank, seconds});
  }
  // Runs a sum of all ranks. Rank `late` arrives `by` after the other ranks. Without `by`, rank `late` arrives when the
  // call has been decided.
  void Sum(uint32_t run, uint32_t late, std::optional<milliseconds> by = std::nullopt) {
    std::vector<std::vector<float>> values;
    for (uint32_t rank = 0; rank < kRanks; ++rank) values.push_back(Operand(rank));
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank != late) ends.push_back(Arrive(rank, values[rank], run));
    }
    if (by) {
      std::this_thread::sleep_for(*by);
    } else {
      ExpectDecided(run);
    }
    ends.push_back(Arrive(late, values[late], run));
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    ExpectSums(values);
  }
  void ExpectDecided(uint32_t launch) {
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(30);
    while (!sites_[0]->selector()->Find(Call(launch)) && Clock::now() < limit)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(sites_[0]->selector()->Find(Call(launch)));
  }
  // Process 0 receives the notice that rank `rank` waits in a call with this fingerprint.
  void Wait(uint32_t rank, uint32_t launch, uint64_t fingerprint) {
    const Arrival waits{Call(launch), rank, 10 * rank, fingerprint, "psum", /*waits=*/true};
    executors_[0]->messages().OnNotice(rank, Encode(waits));
  }
  // Process `at` receives the notice that a rank has arrived with this schedule.
  void Arrives(uint32_t rank, uint32_t launch, uint32_t schedule, uint32_t at) {
    const MessageSite& site = *sites_[at]->With(schedule);
    executors_[at]->messages().OnNotice(
        rank, Encode(Arrival{Call(launch), rank, 10 * rank, site.fingerprint(), site.text()}));
  }
  void ExpectError(std::future<Status>& end, const std::string& text) {
    ASSERT_EQ(end.wait_for(std::chrono::seconds(50)), std::future_status::ready);
    const std::string message = end.get().message();
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }
};

// The decider may be missing, too. The decider's process knows the call site from an earlier call.
TEST_F(BetweenProcesses, AnyRankMayBeMissing) {
  Start(/*seed=*/1);
  for (uint32_t run = 0; run < 3 * kRanks; ++run) Sum(run, run % kRanks == 0 ? kRanks - 1 : run % kRanks - 1);
  for (uint32_t process = 0; process < kRanks; ++process) EXPECT_EQ(DefaultCallsAt(process), 0) << process;
}

TEST_F(BetweenProcesses, WithinTheGraceNoRankIsMissing) {
  Start(/*seed=*/2, /*seconds=*/30);
  for (uint32_t run = 0; run < kRanks; ++run) Sum(run, run, milliseconds(20));
  for (uint32_t process = 0; process < kRanks; ++process) EXPECT_EQ(DefaultCallsAt(process), kRanks) << process;
}

TEST_F(BetweenProcesses, AfterTheGraceTheCallIsDecidedWithoutTheRank) {
  Start(/*seed=*/3, /*seconds=*/0.005);
  for (uint32_t run = 0; run < 4; ++run) Sum(run, /*late=*/2);
  EXPECT_EQ(DefaultCallsAt(1), 0);
}

TEST_F(BetweenProcesses, AllRunTheSameInAnyOrderOfArrival) {
  for (const double seconds : {0.0, 0.0003}) {
    Start(/*seed=*/4, seconds);
    std::vector<std::thread> processes;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      processes.emplace_back([this, rank] {
        std::mt19937 random(rank);
        SumInLoop(rank, 100, [&](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000)); });
      });
    }
    for (std::thread& process : processes) process.join();
    for (uint32_t process = 1; process < kRanks; ++process) EXPECT_EQ(DefaultCallsAt(process), DefaultCallsAt(0));
    network_->Stop();
    sites_.clear();
    others_.clear();
    executors_.clear();
    network_.reset();
  }
}

TEST_F(BetweenProcesses, ACallThatLacksTwoRanksEndsAtTheDeadline) {
  Start(/*seed=*/5);
  Sum(0, 1, milliseconds(0));
  for (const auto& executor : executors_) executor->SetDeadline(0.3);
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::future<Status> first = Arrive(0, values[0], 1), third = Arrive(2, values[2], 1);
  for (auto* end : {&first, &third}) ExpectError(*end, "ranks 1,3 of 4 have not arrived after ");
  for (const auto& executor : executors_) executor->SetDeadline(30);
  for (const uint32_t rank : {1u, 3u}) EXPECT_FALSE(Arrive(rank, values[rank], 1).get().ok());
  Sum(2, 1, milliseconds(0));
}

TEST_F(BetweenProcesses, TheMissingRankIsNamedAtTheDeadline) {
  Start(/*seed=*/6);
  Sum(0, 1, milliseconds(0));
  for (const auto& executor : executors_) executor->SetDeadline(0.3);
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {1u, 2u, 3u}) ends.push_back(Arrive(rank, values[rank], 1));
  for (auto& end : ends) ExpectError(end, "rank 0 of 4 has not arrived after ");
}

// Rank 1 has received rank 0's decision. The decision is still on its way to the other ranks.
TEST_F(BetweenProcesses, ARankThatLacksADecisionAtTheDeadlineEndsWithADeadlineError) {
  Start(/*seed=*/15);
  Sum(0, 1, milliseconds(0));
  executors_[3]->SetDeadline(0.2);
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::future<Status> end = Arrive(3, values[3], 1);
  Arrives(/*rank=*/1, /*launch=*/1, /*schedule=*/3, /*at=*/3);
  ExpectError(end, "ranks 0,2 of 4 have not arrived after ");
  executors_[3]->messages().OnNotice(0, Encode(Decided{Call(1), {3}}));
  EXPECT_FALSE(Arrive(1, values[1], 1).get().ok());
}

TEST_F(BetweenProcesses, ARankThatLacksADecisionIsGivenTheDecidersEnd) {
  Start(/*seed=*/16);
  Sum(0, 1, milliseconds(0));
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::future<Status> end = Arrive(3, values[3], 1);
  Arrives(/*rank=*/1, /*launch=*/1, /*schedule=*/3, /*at=*/3);
  network_->Kill(0);
  ExpectError(end, "rank 0 is gone");
}

TEST_F(BetweenProcesses, IfTheDecidersProcessDiesUndecidedCallsFail) {
  Start(/*seed=*/7);
  Sum(0, 1, milliseconds(0));
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::future<Status> first = Arrive(1, values[1], 1), second = Arrive(2, values[2], 1);
  EXPECT_TRUE(IsWaiting(first));
  network_->Kill(0);
  for (auto* end : {&first, &second}) ExpectError(*end, "rank 0 is gone");
  EXPECT_FALSE(Arrive(3, values[3], 1).get().ok());  // the call begins after process 0 has died
}

TEST_F(BetweenProcesses, IfTheDecidersProcessDiesDecidedCallsFail) {
  Start(/*seed=*/8);
  Sum(0, 1, milliseconds(0));
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {1u, 2u, 3u}) ends.push_back(Arrive(rank, values[rank], 1));  // rank 0 is missing
  EXPECT_TRUE(IsWaiting(ends[0]));
  network_->Kill(0);
  for (auto& end : ends) ExpectError(end, "rank 0 is gone");
}

TEST_F(BetweenProcesses, AMissingRankThatDiesIsNamed) {
  Start(/*seed=*/9);
  Sum(0, 1, milliseconds(0));
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0u, 1u, 2u}) ends.push_back(Arrive(rank, values[rank], 1));
  EXPECT_TRUE(IsWaiting(ends[0]));
  network_->Kill(3);
  for (auto& end : ends) ExpectError(end, "rank 3 is gone");
}

// The first sums of different steps on a mesh have the same CallId.
TEST_F(BetweenProcesses, TheCallsOfAnotherStepAreNotDecided) {
  Start(/*seed=*/11);
  Sum(0, 1);
  for (uint32_t rank = 1; rank < kRanks; ++rank) Wait(rank, 1, sites_[0]->fingerprint() + 1);
  EXPECT_FALSE(sites_[0]->selector()->Find(Call(1)));
  for (uint32_t rank = 1; rank < kRanks; ++rank) Wait(rank, 2, sites_[0]->fingerprint());
  EXPECT_EQ(sites_[0]->selector()->Find(Call(2)), 1u);
}

// The same call may belong to different steps in different processes. If any rank may be late, all these steps share
// one selector. If one fixed rank may be late, each step has its own selector, but these selectors have the same id.
TEST_F(BetweenProcesses, StepsWithTheSameCallShareASelector) {
  Start(/*seed=*/12);
  const auto in_step = [&](uint64_t step, ScheduleSelector::Rule rule) {
    return executors_[0]->messages().SelectorOf(*sites_[0], others_[0], rule, step);
  };
  EXPECT_EQ(in_step(1, {ScheduleSelector::kAnyRank, 0}).get(), sites_[0]->selector());
  EXPECT_NE(in_step(1, {2, 0.01}).get(), in_step(2, {2, 0.01}).get());
  EXPECT_EQ(in_step(1, {2, 0.01})->id(), in_step(2, {2, 0.01})->id());
}

TEST_F(BetweenProcesses, ADecisionThatWasForgottenIsSentAgain) {
  Start(/*seed=*/13);
  Sum(0, 1);
  std::vector<std::vector<float>> values;
  for (uint32_t rank = 0; rank < kRanks; ++rank) values.push_back(Operand(rank));
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 3; ++rank) ends.push_back(Arrive(rank, values[rank], 1));
  ExpectDecided(1);
  std::this_thread::sleep_for(milliseconds(20));  // the decision has most likely arrived in all processes by then
  for (uint32_t launch = 1000; launch < 3000; ++launch) {
    executors_[3]->messages().OnNotice(0, Encode(Decided{Call(launch), {}}));
  }
  ends.push_back(Arrive(3, values[3], 1));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  ExpectSums(values);
}

TEST_F(BetweenProcesses, ADeciderThatCallsWithoutASelectorIsNamedAtOnce) {
  Start(/*seed=*/14);
  Sum(0, 1);
  sites_[0] = MakeSite("all_reduce/flat/4", 0);
  EXPECT_TRUE(sites_[0]->SetLeaves({{DType::kF32, 4 * kElements}}, executors_[0]->stats()).ok());
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {1u, 2u, 3u, 0u}) ends.push_back(Arrive(rank, values[rank], 1));
  for (auto& end : ends) ExpectError(end, "MismatchError");
}

TEST_F(BetweenProcesses, ARankThatBringsAnErrorEndsAnUndecidedCall) {
  Start(/*seed=*/10);
  Sum(0, 1, milliseconds(0));
  std::vector<std::vector<float>> values(kRanks, Operand(0));
  std::future<Status> first = Arrive(1, values[1], 1);
  EXPECT_TRUE(IsWaiting(first));
  executors_[2]->messages().Refuse(*sites_[2], /*run=*/1, /*rank=*/2, InvalidArgument("rank 2 has no operands"));
  ExpectError(first, "rank 2 has no operands");
}

using ProcessesOfTwoRanks = SelectingProcesses</*kProcesses=*/2, /*kRanksOfEach=*/2>;

// Rank 0 arrives first. When its deadline passes, rank 1 waits as well, but neither rank has joined the call.
TEST_F(ProcessesOfTwoRanks, ARankThatWaitsForTheDecisionIsNotMissing) {
  Start(/*seed=*/17,
        {"all_reduce/flat/4", "all_reduce/ring/4", "all_reduce/ring/4", "all_reduce/ring/4", "all_reduce/ring/4"},
        {ScheduleSelector::kAnyRank, 0});
  executors_[0]->SetDeadline(1);
  std::vector<std::vector<float>> values(2, std::vector<float>(kElements));
  std::future<Status> first = Arrive(0, values[0], 0);
  std::this_thread::sleep_for(milliseconds(500));
  std::future<Status> second = Arrive(1, values[1], 0);
  for (auto* end : {&first, &second}) {
    const std::string message = end->get().message();
    EXPECT_NE(message.find("ranks 2,3 of 4 have not arrived after "), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace jaxcomm

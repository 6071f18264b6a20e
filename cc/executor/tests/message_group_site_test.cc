#include "cc/executor/sites/message_group_site.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRanks = 4;

// Ranks 0 to 3, divided equally among the processes.
class Job {
 public:
  Job(uint32_t processes, size_t elements, const std::string& way = "flat", uint32_t seed = 1)
      : each_(kRanks / processes), values_(kRanks, std::vector<float>(elements)), network_(processes, seed) {
    std::vector<MessageRank> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) ranks.push_back({rank / each_, 10 * rank});
    for (uint32_t process = 0; process < processes; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_[process]->messages());
      executors_[process]->messages().Connect(&network_.transport(process));
      auto made = MessageGroupSite::Make(
          {"mean", "data", "groups", "train.py:57"}, /*module=*/77, /*site=*/3, ranks,
          {"all_reduce/" + way + "/2", "all_reduce/" + way + "/3", "all_reduce/" + way + "/4"}, registry_, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      sites_.push_back(made.value());
      const Leaf leaf = {DType::kF32, static_cast<int64_t>(elements * sizeof(float))};
      EXPECT_TRUE(sites_.back()->SetLeaves({leaf}, executors_.back()->stats()).ok());
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) Fill(rank, 0);
  }
  ~Job() {
    network_.Stop();
    for (size_t process = 0; process < sites_.size(); ++process) sites_[process]->Forget(*executors_[process]);
  }

  // The values are powers of ten, so that a sum's digits show which ranks were added.
  static float Value(uint32_t rank) { return std::vector<float>{1, 10, 100, 1000}[rank]; }
  void Fill(uint32_t rank, float more) {
    for (float& value : values_[rank]) value = Value(rank) + more;
  }

  std::future<Status> Arrive(uint32_t rank, const GroupNumbers& row, int64_t run = 1) {
    const auto promise = std::make_shared<std::promise<Status>>();
    auto* bytes = reinterpret_cast<std::byte*>(values_[rank].data());
    const uint32_t process = rank / each_;
    sites_[process]->Arrive(*executors_[process], 1000 * process + run, rank,
                            {{bytes}, {bytes}, reinterpret_cast<const std::byte*>(row.data())},
                            [promise](const Status& status) { promise->set_value(status); });
    return promise->get_future();
  }

  void ExpectNextCallWorks(int64_t run) {
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Fill(rank, 0);
      ends.push_back(Arrive(rank, {0, 0, 0, 0}, run));
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const Status status = ends[rank].get();
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(values_[rank].back(), 1111);
    }
  }

  const std::vector<float>& values(uint32_t rank) const { return values_[rank]; }
  Executor& executor(uint32_t process) { return *executors_[process]; }

 private:
  const uint32_t each_;
  std::vector<std::vector<float>> values_;
  MessageRegistry registry_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::shared_ptr<MessageGroupSite>> sites_;
};

using Case = std::tuple<uint32_t, size_t, const char*>;  // processes, elements, way
class MessageGroupSiteTest : public testing::TestWithParam<Case> {};

TEST_P(MessageGroupSiteTest, ThreadsThatRunThroughRandomRowsAgree) {
  const auto [processes, elements, way] = GetParam();
  const int kRounds = elements < 1000 ? 200 : 20;
  Job job(processes, elements, way);
  std::mt19937 random(1);
  std::vector<GroupNumbers> rows(static_cast<size_t>(kRounds), GroupNumbers(kRanks));
  for (GroupNumbers& row : rows) {
    for (int32_t& group : row) group = static_cast<int32_t>(random() % kRanks);
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (size_t round = 0; round < rows.size(); ++round) {
        const auto more = static_cast<float>(round);
        job.Fill(rank, more);
        const Status status = job.Arrive(rank, rows[round]).get();
        ASSERT_TRUE(status.ok()) << status.message();
        float expected = 0;
        for (const uint32_t other : MembersOf(rows[round], rows[round][rank])) expected += Job::Value(other) + more;
        const std::vector<float>& values = job.values(rank);
        ASSERT_EQ(std::count(values.begin(), values.end(), expected), values.size()) << TextOf(rows[round]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string stats = job.executor(0).stats().Json();
  const std::string label = "\"plan\":\"groups\",\"ranks\":4,\"bytes\":" + std::to_string(4 * elements) +
                            ",\"calls\":" + std::to_string(kRounds) + ",\"failed\":0";
  EXPECT_NE(stats.find(label), std::string::npos) << stats;
}

INSTANTIATE_TEST_SUITE_P(All, MessageGroupSiteTest,
                         testing::Values(Case{4, 100, "flat"}, Case{2, 100, "flat"}, Case{4, 3000, "direct"},
                                         Case{2, 300000, "direct"}, Case{1, 3000, "direct"}));

// The last rank passes the row `other`; all other ranks pass `row`.
struct Wrong {
  GroupNumbers row, other;
};
class WrongRowTest : public testing::TestWithParam<std::tuple<uint32_t, Wrong>> {};

TEST_P(WrongRowTest, FailsAllRanksAndNamesBothSides) {
  const auto& [processes, wrong] = GetParam();
  int64_t run = 1;
  for (const char* way : {"flat", "direct"}) {
    for (const size_t elements : {10, 3000, 100000}) {
      Job job(processes, elements, way);
      for (uint32_t shift = 0; shift < kRanks; ++shift) {
        std::vector<std::future<Status>> ends(kRanks);
        for (uint32_t i = 0; i < kRanks; ++i) {
          const uint32_t rank = (i + shift) % kRanks;
          ends[rank] = job.Arrive(rank, rank == 3 ? wrong.other : wrong.row, run);
        }
        for (uint32_t rank = 0; rank < kRanks; ++rank) {
          const Status status = ends[rank].get();
          const GroupNumbers& own = rank == 3 ? wrong.other : wrong.row;
          const std::vector<uint32_t> group = MembersOf(own, own[rank]);
          const bool waits_for_3 = rank != 3 && group.back() == 3, is_alone = group.size() == 1;
          // Groups without rank 3 succeed if they complete before a rank finds that the rows differ.
          if (status.ok()) {
            EXPECT_TRUE(is_alone || (rank != 3 && !waits_for_3)) << rank;
            continue;
          }
          EXPECT_EQ(status.message().find("MismatchError: mean #"), 0u) << status.message();
          EXPECT_NE(status.message().find(TextOf(wrong.row)), std::string::npos) << status.message();
          EXPECT_NE(status.message().find(TextOf(wrong.other)), std::string::npos) << status.message();
        }
        job.ExpectNextCallWorks(++run);
        ++run;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WrongRowTest,
                         testing::Combine(testing::Values(2u, 4u), testing::Values(Wrong{{0, 0, 1, 1}, {0, 1, 0, 1}},
                                                                                   Wrong{{0, 0, 0, 0}, {0, 0, 1, 1}},
                                                                                   Wrong{{0, 0, 1, 1}, {1, 1, 0, 0}},
                                                                                   Wrong{{0, 0, 1, 1}, {0, 0, 1, 2}})));

TEST(MessageGroupSiteFailureTest, ARankThatGoesOnAloneIsNamedByThoseThatWaitForIt) {
  Job job(4, 100);
  EXPECT_TRUE(job.Arrive(3, {0, 0, 1, 2}).get().ok());
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0, 1, 2}) ends.push_back(job.Arrive(rank, {0, 0, 1, 1}));
  const std::string message = ends[2].get().message();
  EXPECT_EQ(message.find("MismatchError: mean #1 over 'data' (400 B, plan groups): rank 2 has the groups "
                         "[0 0 1 1], rank 3 has [0 0 1 2].\n  Cure: "),
            0u)
      << message;
  for (const uint32_t rank : {0, 1})
    ends[rank].wait();  // waits for the sum or an error, because the call uses the ranks' memory until then
  job.ExpectNextCallWorks(2);
}

TEST(MessageGroupSiteFailureTest, AWrongRankThatNobodyWaitsForHearsOfIt) {
  Job job(4, 100);
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0, 1, 2}) ends.push_back(job.Arrive(rank, {0, 0, 1, 2}));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  const std::string message = job.Arrive(3, {0, 0, 1, 0}).get().message();
  EXPECT_EQ(message.find("MismatchError: mean #"), 0u) << message;
  EXPECT_NE(message.find("rank 3 has the groups [0 0 1 0], rank "), std::string::npos) << message;
  job.ExpectNextCallWorks(2);
}

TEST(MessageGroupSiteFailureTest, AGroupOutOfRangeFailsAllRanks) {
  for (const uint32_t processes : {1u, 2u, 4u}) {
    Job job(processes, 100);
    int64_t run = 1;
    for (const int32_t group : {-1, 4}) {
      std::vector<std::future<Status>> ends;
      for (const uint32_t rank : {1, 3, 0, 2}) {
        ends.push_back(job.Arrive(rank, rank == 3 ? GroupNumbers{0, 0, group, 0} : GroupNumbers{0, 0, 0, 0}, run));
      }
      for (auto& end : ends) {
        const std::string message = end.get().message();
        EXPECT_EQ(message.find("mean over 'data': rank 3 says that rank 2 is in group " + std::to_string(group) +
                               "; groups are 0 to 3."),
                  0u)
            << message;
      }
      ++run;
      job.ExpectNextCallWorks(run++);
    }
  }
}

TEST(MessageGroupSiteFailureTest, AMissingRankIsNamedAndOtherGroupsGoOn) {
  Job job(4, 100);
  for (uint32_t process = 0; process < 4; ++process) job.executor(process).SetDeadline(0.2);
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0, 2, 1}) ends.push_back(job.Arrive(rank, {0, 1, 0, 1}));
  EXPECT_TRUE(ends[0].get().ok());
  EXPECT_TRUE(ends[1].get().ok());
  const Status status = ends[2].get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 3 of the group 1,3 has not arrived after 0."), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("; 1 waits."), std::string::npos) << status.message();
}

TEST(MessageGroupSiteStatisticsTest, WhatRanksOfOtherGroupsDidIsUnknown) {
  Job job(4, 100);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Status>> ends;
    for (const uint32_t rank : {1, 3, 0, 2}) ends.push_back(job.Arrive(rank, {0, 1, 0, 1}));
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  }
  const std::string stats = job.executor(0).stats().Json();
  const size_t at = stats.find("\"arrivals\":[[");
  ASSERT_NE(at, std::string::npos) << stats;
  double own, other;
  EXPECT_EQ(std::sscanf(stats.c_str() + at, "\"arrivals\":[[%lf,null,%lf,null]", &own, &other), 2) << stats;
  EXPECT_NE(stats.find(",null,null,null]],\"after_arrival_s\""), std::string::npos) << stats;
}

}  // namespace
}  // namespace jaxcomm

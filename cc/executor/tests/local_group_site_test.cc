#include "cc/executor/local/local_group_site.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/testing/by_hand.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRanks = 4;
constexpr size_t kElements = 100;

class LocalGroupSiteTest : public testing::Test {
 protected:
  LocalGroupSiteTest()
      : site_(std::make_shared<LocalGroupSite>(
            "mean", "data", std::vector{DirectByHand(2, 1), DirectByHand(3, 1), DirectByHand(4, 1)})),
        values_(kRanks, std::vector<float>(kElements)) {
    EXPECT_TRUE(site_->SetLeaves({{DType::kF32, kElements * sizeof(float)}}, executor_.stats()).ok());
    for (uint32_t rank = 0; rank < kRanks; ++rank) Fill(rank, 0);
  }

  ~LocalGroupSiteTest() override { site_->Forget(executor_); }

  // The values are powers of ten, so that a sum's digits show which ranks were added.
  void Fill(uint32_t rank, float more) {
    for (float& value : values_[rank]) value = std::vector<float>{1, 10, 100, 1000}[rank] + more;
  }

  std::future<Status> Arrive(uint32_t rank, GroupNumbers row, int64_t run = 1) {
    auto promise = std::make_shared<std::promise<Status>>();
    auto* bytes = reinterpret_cast<std::byte*>(values_[rank].data());
    site_->Arrive(executor_, run, rank, {{bytes}, {bytes}, reinterpret_cast<const std::byte*>(row.data())},
                  [promise](const Status& status) { promise->set_value(status); });
    return promise->get_future();
  }

  Executor executor_{2};
  std::shared_ptr<LocalGroupSite> site_;
  std::vector<std::vector<float>> values_;
};

TEST_F(LocalGroupSiteTest, EachGroupSumsForItselfWhateverItsNumber) {
  const GroupNumbers row = {3, 0, 3, 1};
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {2, 3, 1, 0}) ends.push_back(Arrive(rank, row));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  EXPECT_EQ(values_[0].back(), 101);
  EXPECT_EQ(values_[2].back(), 101);
  EXPECT_EQ(values_[1].back(), 10);
  EXPECT_EQ(values_[3].back(), 1000);
}

// Ranks 2 and 3 are one round ahead. Their next group has the same number and size as the group in which rank 0 waits.
TEST_F(LocalGroupSiteTest, RoundsNeverMix) {
  std::vector<std::future<Status>> ends;
  ends.push_back(Arrive(0, {0, 0, 1, 1}));
  ends.push_back(Arrive(2, {0, 0, 1, 1}));
  ends.push_back(Arrive(3, {0, 0, 1, 1}));
  ends[1].wait();
  ends[2].wait();
  ends.push_back(Arrive(2, {0, 1, 0, 1}));
  ends.push_back(Arrive(3, {0, 1, 0, 1}));
  EXPECT_EQ(values_[0].front(), 1);
  ends.push_back(Arrive(1, {0, 0, 1, 1}));
  ends[0].wait();
  ends[5].wait();
  ends.push_back(Arrive(0, {0, 1, 0, 1}));
  ends.push_back(Arrive(1, {0, 1, 0, 1}));
  for (auto& end : ends) {
    EXPECT_TRUE(end.get().ok());
  }
  for (const auto& values : values_) EXPECT_EQ(values.front(), 1111);
}

TEST_F(LocalGroupSiteTest, RunsAtTheSameTimeKeepApart) {
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(Arrive(rank, {0, 0, 0, 0}, /*run=*/1));
  for (uint32_t rank = 2; rank < 4; ++rank) ends.push_back(Arrive(rank, {0, 1, 2, 2}, /*run=*/2));
  ends[2].wait();
  ends[3].wait();
  EXPECT_EQ(values_[2].front(), 1100);
  for (uint32_t rank = 2; rank < 4; ++rank) ends.push_back(Arrive(rank, {0, 0, 0, 0}, /*run=*/1));
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(Arrive(rank, {0, 1, 2, 2}, /*run=*/2));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  for (const auto& values : values_) EXPECT_EQ(values.front(), 2211);
}

TEST_F(LocalGroupSiteTest, ThreadsThatRunThroughRandomRowsAgree) {
  constexpr int kRounds = 300;
  std::mt19937 random(1);
  std::vector<GroupNumbers> rows(kRounds, GroupNumbers(kRanks));
  for (GroupNumbers& row : rows) {
    for (int32_t& group : row) group = static_cast<int32_t>(random() % kRanks);
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        Fill(rank, static_cast<float>(round));
        ASSERT_TRUE(Arrive(rank, rows[round]).get().ok());
        float expected = 0;
        for (uint32_t other = 0; other < kRanks; ++other) {
          if (rows[round][other] == rows[round][rank]) {
            expected += std::vector<float>{1, 10, 100, 1000}[other] + static_cast<float>(round);
          }
        }
        for (const float value : values_[rank]) ASSERT_EQ(value, expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string stats = executor_.stats().Json();
  EXPECT_NE(stats.find("\"plan\":\"groups\",\"ranks\":4,\"bytes\":400,\"calls\":300,\"failed\":0"), std::string::npos)
      << stats;
}

TEST_F(LocalGroupSiteTest, AnotherRowFailsThoseThatWaitAndThoseThatComeLaterByName) {
  std::vector<std::future<Status>> ends;
  ends.push_back(Arrive(0, {0, 0, 1, 1}));
  ends.push_back(Arrive(2, {0, 0, 1, 1}));
  ends.push_back(Arrive(3, {0, 1, 0, 1}));
  ends.push_back(Arrive(1, {0, 0, 1, 1}));
  for (auto& end : ends) {
    const Status status = end.get();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("MismatchError: mean over 'data': rank 3 has the groups [0 1 0 1], rank "
                                     "0 has [0 0 1 1].\n  Cure: ",
                                     0),
              0u)
        << status.message();
  }
  EXPECT_NE(executor_.stats().Json().find("\"failed\":1"), std::string::npos);
  ends.clear();
  for (uint32_t rank = 0; rank < kRanks; ++rank) ends.push_back(Arrive(rank, {0, 0, 0, 0}));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
}

TEST_F(LocalGroupSiteTest, AFailedRoundIsForgottenOnceAllHaveCome) {
  std::mt19937 random(1);
  for (int64_t run = 0; run < 200; ++run) {
    std::vector<uint32_t> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::future<Status>> ends;
    for (const uint32_t rank : order) {
      ends.push_back(Arrive(rank, rank == 3 ? GroupNumbers{0, 1, 0, 1} : GroupNumbers{0, 0, 1, 1}, run));
    }
    size_t failed = 0;
    for (auto& end : ends) failed += !end.get().ok();
    EXPECT_GE(failed, 2u);
  }
  EXPECT_EQ(site_->open_rounds(), 0u);
  EXPECT_EQ(executor_.local().open_calls(), 0u);
}

TEST_F(LocalGroupSiteTest, AFailedRoundThatARankNeverJoinsIsNotKeptForEver) {
  executor_.SetDeadline(0.01);
  std::vector<std::future<Status>> ends;
  for (int64_t run = 0; run < 1000; ++run) {
    for (const uint32_t rank : {0, 1, 2}) ends.push_back(Arrive(rank, {0, 0, 0, 0}, run));
  }
  for (auto& end : ends) EXPECT_EQ(end.get().code(), Code::kDeadlineExceeded);
  EXPECT_LE(site_->open_rounds(), 256u);
  EXPECT_LE(executor_.local().open_calls(), 256u);
}

TEST_F(LocalGroupSiteTest, AGroupOutOfRangeIsAnError) {
  for (const int32_t group : {-1, 4}) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const Status status = Arrive(rank, {0, 1, group, 0}).get();
      EXPECT_EQ(status.message().rfind("mean over 'data': rank 0 says that rank 2 is in group " +
                                           std::to_string(group) + "; groups are 0 to 3.",
                                       0),
                0u)
          << status.message();
    }
  }
}

TEST_F(LocalGroupSiteTest, AMissingRankIsNamedByItsOwnNumberAndOtherGroupsGoOn) {
  executor_.SetDeadline(0.1);
  const GroupNumbers row = {0, 1, 0, 1};
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0, 2, 1}) ends.push_back(Arrive(rank, row));
  EXPECT_TRUE(ends[0].get().ok());
  EXPECT_TRUE(ends[1].get().ok());
  const Status status = ends[2].get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 3 of the group 1,3 has not arrived after 0."), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("; 1 waits."), std::string::npos) << status.message();
}

TEST_F(LocalGroupSiteTest, WhatARankTookItselfIsApartFromWhatItWaited) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::future<Status>> ends;
    for (const uint32_t rank : {0, 2, 3}) ends.push_back(Arrive(rank, {0, 0, 2, 2}));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ends.push_back(Arrive(1, {0, 0, 2, 2}));
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  }
  const std::string stats = executor_.stats().Json();
  const size_t at = stats.find("\"work_s\":[[");
  ASSERT_NE(at, std::string::npos) << stats;
  double own[kRanks];
  ASSERT_EQ(std::sscanf(stats.c_str() + at, "\"work_s\":[[%lf,%lf,%lf,%lf]", own, own + 1, own + 2, own + 3), 4);
  EXPECT_GE(own[1], 0.05);
  EXPECT_LT(own[0], own[1]);  // rank 0 waited for rank 1, but waiting does not count as own time
  EXPECT_NE(stats.find("\"late\":[0,3,"), std::string::npos) << stats;
}

}  // namespace
}  // namespace jaxcomm

#include "cc/gpu/nccl/communicator.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/gpu/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

using std::chrono::milliseconds;

using Made = Result<std::unique_ptr<Communicator>>;

class CommunicatorTest : public testing::Test {
 protected:
  CommunicatorTest() : nccl_(Loaded()) {
    Control<void()>("fake_reset")();
    EXPECT_EQ(nccl_.GetUniqueId(&id_), kSuccess);
  }
  ~CommunicatorTest() override { EXPECT_EQ(Control<int()>("fake_live")(), 0); }

  // Each of the ranks that are here, in a thread of its own.
  std::vector<Made> Create(uint32_t ranks, const std::vector<uint32_t>& here, milliseconds deadline = kLong,
                           ArrivalTable* arrivals = nullptr) {
    std::vector<std::future<Made>> running;
    for (const uint32_t rank : here) {
      running.push_back(std::async(std::launch::async, [=] {
        return Communicator::Create(nccl_, {ranks, rank, id_}, arrivals, Clock::now() + deadline);
      }));
    }
    std::vector<Made> made;
    for (auto& each : running) made.push_back(each.get());
    return made;
  }

  // The seventh call of all ranks, of whom nothing is known.
  static ArrivalReport Seventh(uint32_t ranks) { return {{"psum #7", "data", ""}, 0, ranks, nullptr, 7}; }

  static constexpr milliseconds kLong{20000};
  const Library nccl_;
  Id id_;
};

TEST_F(CommunicatorTest, AllRanksThatComeHaveOne) {
  const std::vector<Made> made = Create(3, {0, 1, 2});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(made[rank].ok()) << made[rank].status().message();
    EXPECT_EQ(made[rank].value()->rank(), rank);
    EXPECT_TRUE(made[rank].value()->Check().ok());
  }
}

TEST_F(CommunicatorTest, ARankThatDoesNotComeIsToldByTheDeadline) {
  const auto start = Clock::now();
  const std::vector<Made> made = Create(3, {0, 2}, milliseconds(100));
  EXPECT_LT(Clock::now() - start, kLong / 2);
  ASSERT_FALSE(made[0].ok());
  EXPECT_EQ(made[1].status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(made[1].status().message().rfind(
                "DeadlineError: NCCL, rank 2 of 3: joining: not all of the 3 ranks have come after 0.", 0),
            0u)
      << made[1].status().message();
}

TEST_F(CommunicatorTest, ADeadlineInTheBeginningSaysWhoOfThisHostIsHere) {
  const std::unique_ptr<ArrivalTable> arrivals =
      std::move(ArrivalTable::Open(testing::TempDir() + "/begin", 3).value());
  arrivals->Arrive(2, 0);
  const std::vector<Made> made = Create(3, {0}, milliseconds(20), arrivals.get());
  EXPECT_NE(made[0].status().message().find("not all of the 3 ranks have come (of this host: 0,2) after 0."),
            std::string::npos)
      << made[0].status().message();
}

TEST_F(CommunicatorTest, WhatNcclRefusesIsSaidWithItsWords) {
  Control<void(const char*, int, int)>("fake_fail")("ncclCommInitRankConfig", 1, 2);
  EXPECT_EQ(Create(1, {0})[0].status().message(),
            "NCCL, rank 0 of 1: joining: unhandled system error (socket closed by the fake)");
}

TEST_F(CommunicatorTest, ARankThatCannotBeIsRefused) {
  EXPECT_EQ(Create(2, {2})[0].status().message(), "a communicator of 2 ranks has no rank 2");
}

TEST_F(CommunicatorTest, AnAsynchronousErrorStopsItAndStays) {
  std::vector<Made> made = Create(1, {0});
  ASSERT_TRUE(made[0].ok());
  Control<void(const char*, int, int)>("fake_fail")("ncclCommGetAsyncError", 3, 6);
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      Seventh(1), [] { return false; }, now, now + kLong);
  EXPECT_EQ(status.message(),
            "psum #7 over 'data': NCCL, rank 0 of 1: calls: remote process exited or there was a network error (socket "
            "closed by the fake)");
  EXPECT_FALSE(made[0].value()->Check().ok());
  EXPECT_EQ(Control<int()>("fake_live")(), 0);
}

TEST_F(CommunicatorTest, AwaitReturnsWhenTheCallIsDone) {
  std::vector<Made> made = Create(1, {0});
  int looks = 0;
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      Seventh(1), [&] { return ++looks == 3; }, now, now + kLong);
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(made[0].value()->Check().ok());
}

TEST_F(CommunicatorTest, TheDeadlineStopsItAndIsToldToEveryLaterCall) {
  std::vector<Made> made = Create(4, {0, 1, 2, 3});
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      Seventh(4), [] { return false; }, now, now + milliseconds(20));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(made[0].value()->Check().message(), status.message());
  EXPECT_EQ(made[0].value()->Fail(InvalidArgument("later")).message(), status.message());
}

}  // namespace
}  // namespace jaxcomm::nccl

#include "cc/nccl/communicators.h"

#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

using std::chrono::milliseconds;

using Made = Result<std::unique_ptr<Communicators>>;

class CommunicatorsTest : public testing::Test {
 protected:
  CommunicatorsTest() : nccl_(Loaded()) { Control<void()>("fake_reset")(); }
  ~CommunicatorsTest() override { EXPECT_EQ(Control<int()>("fake_live")(), 0); }

  std::vector<RailId> Rails(const std::vector<std::string>& modules) {
    std::vector<RailId> rails;
    for (const std::string& module : modules) {
      rails.push_back({module, {}});
      EXPECT_EQ(nccl_.GetUniqueId(&rails.back().id), kSuccess);
    }
    return rails;
  }

  // Each of some ranks, in a thread of its own.
  template <typename Function>
  auto OnRanks(const std::vector<uint32_t>& ranks, Function function) {
    std::vector<std::future<decltype(function(0u))>> running;
    for (const uint32_t rank : ranks) running.push_back(std::async(std::launch::async, function, rank));
    std::vector<decltype(function(0u))> results;
    for (auto& each : running) results.push_back(each.get());
    return results;
  }

  std::vector<Made> Create(uint32_t ranks, const std::vector<uint32_t>& here, const std::vector<RailId>& rails,
                           const std::vector<std::vector<uint32_t>>& partitions, milliseconds deadline = kLong) {
    return OnRanks(here, [=](uint32_t rank) {
      return Communicators::Create(nccl_, {ranks, rank, rails, partitions}, nullptr, Clock::now() + deadline);
    });
  }

  // The seventh call of all ranks, of whom nothing is known.
  static Attendance Seventh(uint32_t ranks) {
    std::vector<uint32_t> members(ranks);
    std::iota(members.begin(), members.end(), 0);
    return {"psum #7 over 'data'", 0, ranks, members, nullptr, {7, 1}};
  }

  std::string Calls(int rank) {
    std::string text(1 << 14, '\0');
    text.resize(Control<size_t(int, char*, size_t)>("fake_calls")(rank, text.data(), text.size()));
    return text;
  }

  void Fail(const char* function, int nth, Outcome outcome) {
    Control<void(const char*, int, int)>("fake_fail")(function, nth, outcome);
  }

  static constexpr milliseconds kLong{20000};
  const Library nccl_;
};

const std::vector<std::vector<uint32_t>> kPeriod = {{0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 0, 0}};

TEST_F(CommunicatorsTest, AllRanksMakeTheSameOnesInTheSameOrder) {
  std::vector<Made> made = Create(4, {0, 1, 2, 3}, Rails({"IB", "Socket"}), kPeriod);
  for (const Made& each : made) ASSERT_TRUE(each.ok()) << each.status().message();
  EXPECT_EQ(Calls(0).rfind("init IB\ninit Socket\nsplit 0 of id", 0), 0u) << Calls(0);
  for (const char* split : {"split 0 of ", "split 1 of ", "split 2 of "}) {
    const std::string call = Calls(0).substr(Calls(0).find(split));
    EXPECT_NE(call.substr(0, call.find('\n')).find(" on IB"), std::string::npos) << "groups are on the first rail";
  }
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(Calls(rank), Calls(0));
  for (const Made& each : made) EXPECT_TRUE(each.value()->Check().ok());
  EXPECT_NE(made[0].value()->rail(0), made[0].value()->rail(1));
  EXPECT_NE(made[0].value()->group(0), made[0].value()->group(2));
  EXPECT_EQ(made[3].value()->members(1), (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(made[3].value()->members(2), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST_F(CommunicatorsTest, ARankThatDoesNotComeIsToldByTheDeadline) {
  const auto start = Clock::now();
  const std::vector<Made> made = Create(3, {0, 2}, Rails({""}), {}, milliseconds(100));
  EXPECT_LT(Clock::now() - start, kLong / 2);
  ASSERT_FALSE(made[0].ok());
  EXPECT_EQ(made[1].status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(made[1].status().message().rfind(
                "DeadlineError: NCCL, rank 2 of 3: joining rail 0: not all of the 3 ranks have come after 0.", 0),
            0u)
      << made[1].status().message();
}

TEST_F(CommunicatorsTest, ARankThatIsLostWhileAGroupIsMadeIsToldByTheDeadline) {
  const std::vector<RailId> rails = Rails({""});
  // Rank 1 does not know of the group, so it never comes to it.
  std::vector<Made> made = OnRanks({0, 1}, [&](uint32_t rank) {
    const std::vector<std::vector<uint32_t>> partitions(rank == 0 ? 1 : 0, {0, 0});
    return Communicators::Create(nccl_, {2, rank, rails, partitions}, nullptr, Clock::now() + milliseconds(100));
  });
  EXPECT_EQ(made[0].status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(made[0].status().message().find("joining group 0 of iteration 0: not all of the 2 ranks"),
            std::string::npos);
  EXPECT_TRUE(made[1].ok());
}

TEST_F(CommunicatorsTest, ADeadlineInTheBeginningSaysWhoOfThisHostIsHere) {
  const std::unique_ptr<Board> board = std::move(Board::Open(testing::TempDir() + "/begin", 3).value());
  board->Arrive(2, {0, 0});
  const Made made = Communicators::Create(nccl_, {3, 0, Rails({""}), {}}, board.get(), Clock::now() + milliseconds(20));
  EXPECT_NE(made.status().message().find("not all of the 3 ranks have come (of this host: 0,2) after 0."),
            std::string::npos)
      << made.status().message();
}

TEST_F(CommunicatorsTest, WhatNcclRefusesIsSaidWithItsWords) {
  Fail("ncclCommInitRankConfig", 2, 2);
  const std::vector<Made> made = Create(1, {0}, Rails({"IB", "Socket"}), {});
  ASSERT_FALSE(made[0].ok());
  EXPECT_EQ(made[0].status().message(),
            "NCCL, rank 0 of 1: joining rail 'Socket': unhandled system error (socket closed by the fake)");
}

TEST_F(CommunicatorsTest, AFailedSplitFreesWhatWasMade) {
  Fail("ncclCommSplit", 2, 6);
  const std::vector<Made> made = Create(1, {0}, Rails({""}), {{0}, {0}});
  ASSERT_FALSE(made[0].ok());
  EXPECT_NE(made[0].status().message().find("joining group 0 of iteration 1: remote process exited"),
            std::string::npos);
}

TEST_F(CommunicatorsTest, AMembershipThatCannotBeIsRefused) {
  EXPECT_NE(Create(2, {2}, Rails({""}), {})[0].status().message().find("rank 2 of 2 on 1 rails"), std::string::npos);
  EXPECT_NE(Create(2, {0}, {}, {})[0].status().message().find("on 0 rails"), std::string::npos);
  EXPECT_NE(Create(2, {0}, Rails({""}), {{0}})[0].status().message().find("partition 0 names the groups of 1 ranks"),
            std::string::npos);
}

TEST_F(CommunicatorsTest, AnAsynchronousErrorStopsAllAndStays) {
  std::vector<Made> made = Create(1, {0}, Rails({""}), {{0}});
  ASSERT_TRUE(made[0].ok());
  Control<void()>("fake_reset")();
  Fail("ncclCommGetAsyncError", 2, 6);  // that of the group
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      Seventh(1), [] { return false; }, now, now + kLong);
  EXPECT_EQ(
      status.message(),
      "psum #7 over 'data': NCCL, rank 0 of 1: group 0 of iteration 0: remote process exited or there was a network "
      "error (socket closed by the fake)");
  EXPECT_FALSE(made[0].value()->Check().ok());
  EXPECT_NE(Calls(0).find("revoke id"), std::string::npos);
  EXPECT_NE(Calls(0).find("abort id"), std::string::npos);
}

TEST_F(CommunicatorsTest, AwaitReturnsWhenTheCallIsDone) {
  std::vector<Made> made = Create(1, {0}, Rails({""}), {});
  int looks = 0;
  const auto now = Clock::now();
  EXPECT_TRUE(made[0]
                  .value()
                  ->Await(
                      Seventh(1), [&] { return ++looks == 3; }, now, now + kLong)
                  .ok());
  EXPECT_TRUE(made[0].value()->Check().ok());
}

TEST_F(CommunicatorsTest, TheDeadlineStopsAllAndIsToldToEveryLaterCall) {
  std::vector<Made> made = Create(4, {0, 1, 2, 3}, Rails({""}), {});
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      Seventh(4), [] { return false; }, now, now + milliseconds(20));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(made[0].value()->Check().message(), status.message());
  EXPECT_EQ(made[0].value()->Fail(InvalidArgument("later")).message(), status.message());
}

TEST_F(CommunicatorsTest, AnotherCallOfAnotherRankEndsTheWait) {
  std::vector<Made> made = Create(2, {0, 1}, Rails({""}), {});
  const std::unique_ptr<Board> board = std::move(Board::Open(testing::TempDir() + "/astray", 2).value());
  Attendance mine = Seventh(2);
  mine.board = board.get();
  board->Arrive(0, mine.number);
  board->Arrive(1, {7, 2});
  const auto now = Clock::now();
  const Status status = made[0].value()->Await(
      mine, [] { return false; }, now, now + kLong);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("psum #7 over 'data': rank 1 makes another call than rank 0.\n  Cure: ", 0), 0u)
      << status.message();
}

TEST_F(CommunicatorsTest, TheOthersGoOnWithoutALostRank) {
  std::vector<Made> made = Create(4, {0, 1, 2, 3}, Rails({"IB", "Socket"}), kPeriod);
  for (const Made& each : made) ASSERT_TRUE(each.ok());
  made[1].value().reset();
  const std::vector<Made> left = OnRanks({0, 2, 3}, [&](uint32_t rank) {
    // Rank 2 has not yet seen the fault; the others' calls have failed.
    if (rank != 2) made[rank].value()->Fail(Status(Code::kDeadlineExceeded, "rank 1 has not arrived"));
    return made[rank].value()->Without({1}, nullptr, Clock::now() + kLong);
  });
  for (size_t i = 0; i < left.size(); ++i) {
    ASSERT_TRUE(left[i].ok()) << left[i].status().message();
    EXPECT_EQ(left[i].value()->rank(), i);
    EXPECT_EQ(left[i].value()->ranks(), 3u);
    EXPECT_TRUE(left[i].value()->Check().ok());
    EXPECT_NE(left[i].value()->rail(1), nullptr);
  }
  for (const uint32_t rank : {0u, 2u, 3u}) EXPECT_FALSE(made[rank].value()->Check().ok());
  EXPECT_EQ(Calls(2), Calls(0));
  EXPECT_EQ(Calls(3), Calls(0));
  EXPECT_NE(Calls(0).find(" on Socket"), std::string::npos);
}

TEST_F(CommunicatorsTest, ARankThatDoesNotComeToTheOthersIsToldByTheDeadline) {
  std::vector<Made> made = Create(3, {0, 1, 2}, Rails({""}), {});
  const std::unique_ptr<Board> board = std::move(Board::Open(testing::TempDir() + "/left", 3).value());
  const Made left = made[2].value()->Without({1}, board.get(), Clock::now() + milliseconds(50));
  EXPECT_EQ(left.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(left.status().message().find("NCCL, rank 1 of 2: shrinking rail 0: not all of the 2 ranks have come (of "
                                         "this host: 1) after 0."),
            std::string::npos)
      << left.status().message();
}

TEST_F(CommunicatorsTest, ARailThatCannotBeRevokedIsAborted) {
  std::vector<Made> made = Create(2, {0, 1}, Rails({""}), {});
  Fail("ncclCommRevoke", 1, 2);
  const Made left = made[0].value()->Without({1}, nullptr, Clock::now() + kLong);
  EXPECT_EQ(left.status().message(), "NCCL, rank 0 of 2: rail 0 could not be revoked");
}

TEST_F(CommunicatorsTest, ShrinkingThatFailsFreesBothSides) {
  std::vector<Made> made = Create(2, {0, 1}, Rails({"IB", "Socket"}), {});
  Fail("ncclCommShrink", 2, 2);
  const Made left = made[0].value()->Without({1}, nullptr, Clock::now() + kLong);
  ASSERT_FALSE(left.ok());
  EXPECT_NE(left.status().message().find("shrinking rail 'Socket': unhandled system error"), std::string::npos);
}

TEST_F(CommunicatorsTest, NobodyLeavesItselfOutOrARankTwiceOrNobody) {
  std::vector<Made> made = Create(3, {0, 1, 2}, Rails({""}), {});
  for (const std::vector<uint32_t>& gone : {std::vector<uint32_t>{0}, {1, 1}, {7}, {}}) {
    EXPECT_EQ(made[0].value()->Without(gone, nullptr, Clock::now() + kLong).status().code(), Code::kInvalidArgument);
  }
}

TEST(OldNccl, AbortsAndSaysThatItCannotLeaveRanksOut) {
  const Library nccl = Loaded(kOld);
  RailId rail{"", {}};
  ASSERT_EQ(nccl.GetUniqueId(&rail.id), kSuccess);
  Made made = Communicators::Create(nccl, {1, 0, {rail}, {}}, nullptr, Clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(made.ok()) << made.status().message();
  made.value()->Fail(Status(Code::kInternal, "lost"));
  EXPECT_EQ(Control<int()>("fake_live", kOld)(), 0);
  EXPECT_EQ(made.value()->Without({}, nullptr, Clock::now()).status().message(),
            "libnccl 2.28.3 cannot leave ranks out (it has no ncclCommRevoke).\n"
            "  Cure: start the job anew without them.");
}

}  // namespace
}  // namespace jaxcomm::nccl

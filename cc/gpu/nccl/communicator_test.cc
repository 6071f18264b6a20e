// Tests communicators and rounds of messages on the fake NCCL, whose ranks are threads. fake/play.cc runs every
// schedule.
#include "cc/gpu/nccl/communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/gpu/nccl/fake/nccl.h"
#include "cc/gpu/nccl/message_rounds.h"
#include "cc/program/message_lists.h"

namespace jaxcomm::nccl {
namespace {

using Made = Result<std::shared_ptr<Communicator>>;

struct NcclTest : testing::Test {
  // Calls work(rank) for every rank on a separate thread, and returns the results.
  template <typename Work>
  static auto OnRanks(uint32_t ranks, Work work) {
    std::vector<std::future<decltype(work(0u))>> running;
    for (uint32_t rank = 0; rank < ranks; ++rank) running.push_back(std::async(std::launch::async, work, rank));
    std::vector<decltype(work(0u))> results;
    for (auto& each : running) results.push_back(each.get());
    return results;
  }

  std::vector<Made> JoinAll(uint32_t ranks) {
    return OnRanks(ranks, [ranks, id = nccl.NewId()](uint32_t rank) {
      return Communicator::Join(FakeNccl(), 0, {ranks, rank, id}, std::chrono::seconds(60));
    });
  }

  // Runs a sum of two leaves: floats in one leaf, and an integer in the other.
  static Status Sum(Communicator& all, const std::string& list, std::vector<float>& x, int32_t& more) {
    const std::vector<uint32_t> words = MessageList(list + "/" + std::to_string(all.ranks()), all.rank());
    auto messages = std::make_shared<const Messages>(Messages::Decode(words.data(), words.size()).value());
    const auto bytes = static_cast<int64_t>(x.size() * sizeof(float));
    const MessageRounds rounds{messages, Layout({{DType::kF32, bytes}, {DType::kS32, 4}}), Reduction::kSum};
    std::vector<std::byte> scratch(rounds.ScratchBytes());
    const std::vector<std::byte*> at{reinterpret_cast<std::byte*>(x.data()), reinterpret_cast<std::byte*>(&more)};
    return all.Run(
        [&](const Library& nccl, Comm comm) { return rounds.Queue(nccl, comm, at, scratch.data(), nullptr); });
  }

  std::string Failure(Communicator& all) {
    std::vector<float> x{1};
    int32_t more = 1;
    return Sum(all, "all_reduce/flat", x, more).message();
  }

  // All tests share the machine, because a thread that outlives its test may still use the machine.
  static inline ::fake::Machine& machine = *std::make_unique<::fake::Machine>(1).release();
  fake::Nccl nccl;
};

TEST_F(NcclTest, EveryRankEndsWithTheSumCallAfterCall) {
  for (const uint32_t ranks : {2u, 3u, 5u, 8u}) {
    std::vector<Made> made = JoinAll(ranks);
    for (const std::string list : {"all_reduce/flat", "all_reduce/direct", "all_reduce/ring"}) {
      for (const size_t size : {1, 7, 1003}) {
        std::vector<std::vector<float>> x(ranks, std::vector<float>(size));
        std::vector<int32_t> more(ranks, 1 << 30);
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          for (size_t i = 0; i < size; ++i) x[rank][i] = static_cast<float>(rank * 100 + i % 17);
        }
        OnRanks(ranks, [&](uint32_t r) { return Sum(*made[r].value(), list, x[r], more[r]); });
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(more[rank], static_cast<int32_t>(ranks << 30));
          for (size_t i = 0; i < size; ++i) {
            ASSERT_EQ(x[rank][i], static_cast<float>(50 * ranks * (ranks - 1) + ranks * (i % 17))) << list << ", " << i;
          }
        }
      }
    }
  }
  EXPECT_EQ(nccl.communicators, 0);  // each communicator was destroyed with its owner
}

// The thread that connects a communicator does not keep the communicator alive.
TEST_F(NcclTest, ACommunicatorEndsWithItsOwner) {
  for (int i = 0; i < 500; ++i) {
    JoinAll(1).clear();
    ASSERT_EQ(nccl.communicators, 0) << i;
  }
}

TEST_F(NcclTest, ARankThatNeverJoinsIsADeadlineError) {
  const Made made = Communicator::Join(FakeNccl(), 0, {2, 1, nccl.NewId()}, std::chrono::milliseconds(100));
  EXPECT_EQ(made.status().message(),
            "DeadlineError: NCCL, rank 1 of 2: not all ranks have joined after 0.1 s.\n  Cure: find what is wrong in "
            "the other processes, then restart all of them.");
}

TEST_F(NcclTest, AFailureToJoinOrConnectNamesTheOperation) {
  for (const auto& [function, operation] : {std::pair("CommInitRank", "joining"), {"GroupEnd", "connecting"}}) {
    nccl.failing = function;
    const Made made = Communicator::Join(FakeNccl(), 0, {1, 0, nccl.NewId()}, std::chrono::seconds(60));
    EXPECT_EQ(made.status().message(), std::string("NCCL, rank 0 of 1: ") + operation + ": system error (the fake's)");
  }
}

TEST_F(NcclTest, AnExceptionOfConnectingIsThatOfJoining) {
  static const Library library = [] {
    Library throwing = FakeNccl();
    throwing.CommInitRank = [](Comm*, int, Id, int) -> Outcome { throw std::bad_alloc(); };
    return throwing;
  }();
  EXPECT_THROW(Communicator::Join(library, 0, {1, 0, nccl.NewId()}, std::chrono::seconds(60)), std::bad_alloc);
}

TEST_F(NcclTest, AnErrorOfACallStaysAndEndsNoLaterGroup) {
  nccl.timeout_s = 0.1;
  for (const char* const function : {"Send", "Recv", "GroupEnd"}) {
    const int sends = nccl.sends;
    std::vector<Made> two = JoinAll(2);
    EXPECT_EQ(nccl.sends - sends, 2);  // joining connects the two ranks in both directions
    nccl.failing = function;
    const std::string error = "round 0: system error (the fake's).\n  Cure: restart the job's processes.";
    EXPECT_EQ(Failure(*two[0].value()), error) << function;
    const int tried = nccl.sends;
    EXPECT_EQ(Failure(*two[0].value()), error) << function;
    EXPECT_EQ(nccl.sends, tried);
  }
}

TEST_F(NcclTest, AnErrorThatNcclFindsLaterFailsTheNextCall) {
  std::vector<Made> made = JoinAll(2);
  nccl.asynchronous = 6;
  EXPECT_EQ(Failure(*made[1].value()).rfind("an earlier call: no message has arrived", 0), 0u);
}

}  // namespace
}  // namespace jaxcomm::nccl

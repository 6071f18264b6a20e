// The fused executor over NCCL's windows, with a fake of each; see fake/ here and in cc/nccl.
#include "cc/executor/cuda/windows.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/cuda/on_device.h"
#include "cc/executor/cuda/places.h"
#include "cc/executor/cuda/ranks.h"
#include "cc/nccl/fake/control.h"
#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {
namespace {

constexpr uint32_t kRanks = 3;
constexpr int64_t kElements = 1003, kBytes = kElements * 4;

// Three ranks, each on a device of its own, as three processes would be.
class WindowsTest : public testing::Test {
 protected:
  struct Rank {
    std::shared_ptr<nccl::Communicators> communicators;
    std::shared_ptr<Ranks> ranks;
    const Windows* meeting = nullptr;  // theirs
    std::byte* data = nullptr;
    cudaStream_t stream = nullptr;
  };

  WindowsTest() : machine_(kRanks), nccl_(nccl::Loaded()) {
    nccl::Control<void()>("fake_reset")();
    nccl::Id id;
    EXPECT_EQ(nccl_.GetUniqueId(&id), nccl::kSuccess);
    const std::string file = testing::TempDir() + "/board";
    std::remove(file.c_str());
    board_ = std::move(nccl::Board::Open(file, kRanks).value());
    OnRanks(kRanks, [&](uint32_t rank) {
      auto made = nccl::Communicators::Create(nccl_, {kRanks, rank, {{"", id}}, {}}, board_.get(), In(20.0));
      EXPECT_TRUE(made.ok()) << made.status().message();
      ranks_[rank].communicators = std::move(made.value());
      const OnDevice on(static_cast<int>(rank));
      cudaStreamCreateWithFlags(&ranks_[rank].stream, cudaStreamNonBlocking);
    });
  }

  ~WindowsTest() override {
    machine_.Wait();
    for (Rank& rank : ranks_) {
      rank.ranks.reset();
      rank.communicators.reset();
      cudaStreamDestroy(rank.stream);
    }
    EXPECT_EQ(nccl::Control<int()>("fake_memory")(), 0);
    EXPECT_EQ(machine_.allocated(), 0u);
  }

  static void OnRanks(uint32_t ranks, const std::function<void(uint32_t)>& work) {
    std::vector<std::future<void>> running;
    for (uint32_t rank = 0; rank < ranks; ++rank) running.push_back(std::async(std::launch::async, work, rank));
    for (std::future<void>& each : running) each.get();
  }

  static nccl::Clock::time_point In(double seconds) {
    return nccl::Clock::now() +
           std::chrono::duration_cast<nccl::Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // The first ranks meet; what each is told.
  std::vector<Status> Meet(uint32_t here, double seconds, bool multicast) {
    std::vector<Status> told(kRanks);
    OnRanks(here, [&](uint32_t rank) {
      std::vector<Seat> seats;
      for (uint32_t other = 0; other < kRanks; ++other) seats.push_back(static_cast<Seat>(other << 16 | other));
      const nccl::Communicators& all = *ranks_[rank].communicators;
      auto windows = std::make_unique<Windows>(
          ranks_[rank].communicators, static_cast<int>(rank), kBytes,
          nccl::Attendance{"psum's meeting", rank, kRanks, all.everybody(), board_.get(), {1, 7}}, In(seconds),
          multicast);
      const Windows& meeting = *windows;
      auto made = Ranks::Make({"psum", "data", "direct", kBytes}, DirectByHand(kRanks, kRanks),
                              Places::Find(seats, rank).value(), std::move(windows), stats_);
      told[rank] = made.status();
      if (!made.ok()) return;
      ranks_[rank].ranks = made.value();
      ranks_[rank].meeting = &meeting;
      ranks_[rank].data = meeting.data();
    });
    return told;
  }

  Status Launch(uint32_t rank, double deadline) {
    return ranks_[rank].ranks->Run(rank, {ranks_[rank].data, kBytes, nullptr, DType::kF32, Reduction::kSum, deadline},
                                   ranks_[rank].stream);
  }

  static bool Contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  fake::Machine machine_;
  const nccl::Library nccl_;
  std::unique_ptr<nccl::Board> board_;
  Stats stats_;
  std::vector<Rank> ranks_ = std::vector<Rank>(kRanks);
};

TEST_F(WindowsTest, RanksSumInEachOthersWindows) {
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/false)) ASSERT_TRUE(status.ok()) << status.message();
  for (int call = 0; call < 5; ++call) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t i = 0; i < kElements; ++i) {
        reinterpret_cast<float*>(ranks_[rank].data)[i] = static_cast<float>(call + 10 * rank + i % 7);
      }
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(ranks_[rank].ranks->CheckReach(rank, ranks_[rank].data, kBytes).ok());
      EXPECT_TRUE(Launch(rank, 20.0).ok());
    }
    machine_.Wait();
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(reinterpret_cast<float*>(ranks_[rank].data)[i], static_cast<float>(3 * (call + i % 7) + 30));
      }
    }
  }
  EXPECT_EQ(machine_.multicast, nullptr);
  EXPECT_FALSE(ranks_[0].ranks->CheckReach(0, ranks_[0].data, kBytes + 1).ok());
  EXPECT_FALSE(ranks_[0].ranks->CheckReach(0, ranks_[1].data, kBytes).ok());
}

TEST_F(WindowsTest, TheKernelGetsTheAddressOfAllWhereItIsAskedFor) {
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/true)) ASSERT_TRUE(status.ok()) << status.message();
  for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(Launch(rank, 20.0).ok());
  machine_.Wait();
  // What the fake takes for it.
  EXPECT_EQ(reinterpret_cast<uint64_t>(machine_.multicast.load()), ranks_[1].meeting->See(1, 0).origin);
}

TEST_F(WindowsTest, ARankCountsFromWhereItsOperandBegins) {
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/false)) ASSERT_TRUE(status.ok()) << status.message();
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (uint32_t from = 0; from < kRanks; ++from) {
      const uint64_t origin = ranks_[from].meeting->See(from, rank).origin;
      EXPECT_EQ(origin == reinterpret_cast<uint64_t>(ranks_[rank].data), from == rank);
    }
  }
}

TEST_F(WindowsTest, WhereThereIsNoSwitchTheMeetingFailsAndTheGroupDoesNot) {
  nccl::Control<void(const char*)>("fake_without")("ncclGetLsaMultimemDevicePointer");
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/true)) {
    EXPECT_EQ(status.code(), Code::kUnimplemented);
    EXPECT_TRUE(Contains(status.message(), "psum over 'data': NCCL, rank ")) << status.message();
    EXPECT_TRUE(Contains(status.message(), "no switch here stores to all ranks at once")) << status.message();
  }
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/false)) EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(WindowsTest, AGroupEndsWithARankThatCannotMeetUnlessNoneCan) {
  const std::shared_ptr<nccl::Communicators>& group = ranks_[0].communicators;
  Windows meeting(group, 0, kBytes, nccl::Attendance{"", 0, kRanks, group->everybody(), nullptr, {1, 7}}, In(20.0),
                  /*multicast=*/false);
  EXPECT_EQ(meeting.Meet(Status(Code::kUnimplemented, "an old NCCL")).message(), "an old NCCL");
  EXPECT_TRUE(group->Check().ok());
  EXPECT_EQ(meeting.Meet(Status(Code::kInternal, "out of memory")).message(), "out of memory");
  EXPECT_FALSE(group->Check().ok());
}

TEST_F(WindowsTest, NamesTheRankThatDoesNotMeetOnce) {
  const std::vector<Status> told = Meet(kRanks - 1, 0.3, /*multicast=*/false);
  EXPECT_EQ(told[0].code(), Code::kDeadlineExceeded);
  EXPECT_EQ(told[0].message().rfind("DeadlineError: psum over 'data': psum's meeting: rank 2 of 3 has not arrived", 0),
            0u)
      << told[0].message();
}

TEST_F(WindowsTest, NamesTheRankThatDoesNotCall) {
  for (const Status& status : Meet(kRanks, 20.0, /*multicast=*/false)) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(Launch(0, 0.3).ok());
  EXPECT_TRUE(Launch(1, 0.3).ok());
  machine_.Wait();
  const Status told = ranks_[0].ranks->Check();
  EXPECT_EQ(told.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(told.message(), "rank 2 of 3 has not arrived after ")) << told.message();
}

TEST_F(WindowsTest, OnlyDevicesThatHaveTheInstructionStoreToAllAtOnce) {
  EXPECT_TRUE(CheckMulticast(0).ok());
  machine_.SetCapability(1, 8);
  EXPECT_EQ(CheckMulticast(1).code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(CheckMulticast(1).message(), "GPU 1 is of compute capability 8; "))
      << CheckMulticast(1).message();
  EXPECT_TRUE(Contains(CheckMulticast(7).message(), "GPU 7: no such device"));
}

}  // namespace
}  // namespace jaxcomm::fused

#include "cc/nccl/window.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/nccl/board.h"
#include "cc/nccl/fake/control.h"
#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kRanks = 3;
constexpr size_t kBytes = 4096;

// Three ranks that have come together, on one board.
class WindowTest : public testing::Test {
 protected:
  void SetUp() override { Join(kFake); }

  void Join(const char* library) {
    path_ = library;
    windows_.clear();
    ranks_.clear();
    Control<void()>("fake_reset", library)();
    nccl_ = Loaded(library);
    Id id;
    ASSERT_EQ(nccl_.GetUniqueId(&id), kSuccess);
    const std::string file = testing::TempDir() + "/board";
    std::remove(file.c_str());
    Result<std::unique_ptr<Board>> board = Board::Open(file, kRanks);
    ASSERT_TRUE(board.ok()) << board.status().message();
    board_ = std::move(board.value());
    ranks_.resize(kRanks);
    OnRanks([&](uint32_t rank) {
      auto made = Communicators::Create(nccl_, {kRanks, rank, {{"", id}}, {}}, board_.get(), In(20000));
      EXPECT_TRUE(made.ok()) << made.status().message();
      ranks_[rank] = std::move(made.value());
    });
  }

  void TearDown() override {
    windows_.clear();
    ranks_.clear();
    EXPECT_EQ(Control<int()>("fake_live", path_)(), 0);
    EXPECT_EQ(Control<int()>("fake_memory", path_)(), 0);
  }

  static void OnRanks(const std::function<void(uint32_t)>& work, uint32_t ranks = kRanks) {
    std::vector<std::future<void>> running;
    for (uint32_t rank = 0; rank < ranks; ++rank) running.push_back(std::async(std::launch::async, work, rank));
    for (std::future<void>& each : running) each.get();
  }

  static Clock::time_point In(int ms) { return Clock::now() + milliseconds(ms); }

  // The ranks below `here` allocate and register; what each got.
  std::vector<Status> Register(uint32_t here, int ms, uint32_t odd_print = kRanks) {
    windows_.clear();
    windows_.resize(kRanks);
    std::vector<Status> told(kRanks);
    OnRanks(
        [&](uint32_t rank) {
          Result<std::unique_ptr<Window>> made = Window::Allocate(ranks_[rank], kBytes);
          if (!made.ok()) {
            told[rank] = made.status();
            return;
          }
          windows_[rank] = std::move(made.value());
          std::memset(windows_[rank]->memory(), static_cast<int>(rank), kBytes);
          const Attendance attendance{"psum over 'data'",        rank,         kRanks,
                                      ranks_[rank]->everybody(), board_.get(), {1, rank == odd_print ? 8u : 7u}};
          told[rank] = windows_[rank]->Register(attendance, In(ms));
        },
        here);
    return told;
  }

  static bool Contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  const char* path_ = kFake;
  Library nccl_;
  std::unique_ptr<Board> board_;
  std::vector<std::shared_ptr<Communicators>> ranks_;
  std::vector<std::unique_ptr<Window>> windows_;
};

TEST_F(WindowTest, EveryRankSeesTheMemoryOfAll) {
  for (int again = 0; again < 2; ++again) {
    for (const Status& status : Register(kRanks, 20000)) ASSERT_TRUE(status.ok()) << status.message();
    for (const auto& window : windows_) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(static_cast<uint32_t>(*window->Of(rank)), rank);
      const Result<std::byte*> all = window->Everywhere();
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_EQ(all.value(), window->Of(0));
    }
  }
  EXPECT_EQ(Control<int()>("fake_memory")(), 3);
}

TEST_F(WindowTest, NamesTheRanksThatDoNotCome) {
  const std::vector<Status> told = Register(kRanks - 1, 200);
  EXPECT_EQ(told[0].code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(told[0].message(), "DeadlineError: psum over 'data': rank 2 of 3 has not arrived after 0.2 s; "))
      << told[0].message();
  EXPECT_FALSE(ranks_[0]->Check().ok());  // and the communicators with it
  EXPECT_TRUE(ranks_[2]->Check().ok());
  windows_.clear();
  EXPECT_EQ(Control<int()>("fake_memory")(), 2);  // NCCL may still be at it
}

TEST_F(WindowTest, TellsOfRanksThatMeetForSomethingElse) {
  const std::vector<Status> told = Register(kRanks, 2000, /*odd_print=*/1);
  std::string all;
  for (const Status& status : told) all += status.message();
  EXPECT_TRUE(Contains(all, " another call than rank ")) << all;
}

TEST_F(WindowTest, SaysWhatIsMissing) {
  const auto without = [&](const char* function) {
    Join(kFake);
    Control<void(const char*)>("fake_without")(function);
    const Status status = Register(kRanks, 20000)[1];
    EXPECT_TRUE(ranks_[1]->Check().ok()) << "messages still run";
    return status.ok() ? windows_[1]->Everywhere().status() : status;
  };
  Status told = without("ncclCommWindowRegister");
  EXPECT_EQ(told.code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(told.message(), "NCCL, rank 1 of 3: NCCL has no windows for these ranks: ")) << told.message();
  told = without("ncclGetPeerDevicePointer");
  EXPECT_EQ(told.code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(told.message(), "cannot reach the memory of ranks 0,1,2.\n  Cure: ")) << told.message();
  told = without("ncclGetLsaMultimemDevicePointer");
  EXPECT_EQ(told.code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(told.message(), "no switch here stores to all ranks at once")) << told.message();
  EXPECT_TRUE(Contains(told.message(), "\n  Cure: leave jaxcomm.ffi.fused.MULTICAST unset.")) << told.message();

  Join(kOld);
  told = Register(kRanks, 20000)[0];
  EXPECT_EQ(told.code(), Code::kUnimplemented);
  EXPECT_TRUE(Contains(told.message(), "libnccl 2.28.3 does not say where other ranks' windows are; 2.29 or later"))
      << told.message();
}

TEST_F(WindowTest, HandsOnWhatNcclSays) {
  const auto failing = [&](const char* function) {
    Join(kFake);
    Control<void(const char*, int, int)>("fake_fail")(function, 1, 2);
    std::string told;
    for (const Status& status : Register(kRanks, 500)) {
      if (!status.ok() && status.code() != Code::kDeadlineExceeded) told += status.message();
    }
    return told;
  };
  EXPECT_TRUE(Contains(failing("ncclMemAlloc"), "allocating a window of 4 KiB: unhandled system error"));
  EXPECT_TRUE(Contains(failing("ncclCommWindowRegister"), "registering a window: unhandled system error"));
  EXPECT_TRUE(Contains(failing("ncclGetPeerDevicePointer"), "finding the window of rank 0: unhandled system error"));
}

}  // namespace
}  // namespace jaxcomm::nccl

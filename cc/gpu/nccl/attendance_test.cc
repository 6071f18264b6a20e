#include "cc/gpu/nccl/attendance.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

class AttendanceTest : public testing::Test {
 protected:
  AttendanceTest() : board_(std::move(Board::Open(testing::TempDir() + "/attendance", 4).value())) {
    for (uint32_t rank = 0; rank < 4; ++rank) board_->Arrive(rank, 6);
    mine_ = {"psum #7 over 'data' (16 MiB)", 0, 4, board_.get(), 7};
    mine_.Arrive();
  }
  ~AttendanceTest() override { std::remove((testing::TempDir() + "/attendance").c_str()); }

  std::unique_ptr<Board> board_;
  Attendance mine_;
  std::chrono::milliseconds waited_{3000};
};

TEST_F(AttendanceTest, ALateRankIsNamedAsOnCpus) {
  board_->Arrive(1, 7);
  board_->Arrive(3, 7);
  const Status late = mine_.Late(waited_);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.message(),
            "DeadlineError: psum #7 over 'data' (16 MiB): rank 2 of 4 has not arrived after 3.0 s; 0,1,3 wait.");
}

TEST_F(AttendanceTest, WhereNobodyIsKnownToBeMissingItSaysSo) {
  for (uint32_t rank = 1; rank < 4; ++rank) board_->Arrive(rank, 7);
  const std::string message = "DeadlineError: psum #7 over 'data' (16 MiB): not all of the 4 ranks have finished ";
  EXPECT_EQ(mine_.Late(waited_).message(), message + "after 3.0 s; 0,1,2,3 wait.");
  mine_.board = nullptr;
  EXPECT_EQ(mine_.Late(waited_).message(), message + "after 3.0 s; 0 waits.");
}

TEST_F(AttendanceTest, WhatNcclSaysIsToldWithWhoIsMissing) {
  board_->Arrive(1, 7);
  board_->Arrive(2, 7);
  const Status error(Code::kInternal, "NCCL, rank 0 of 4: rail 0: remote process exited");
  EXPECT_EQ(mine_.Lost(error).message(),
            "psum #7 over 'data' (16 MiB): rank 3 of 4 has not arrived; NCCL, rank 0 of 4: rail 0: remote process "
            "exited");
  board_->Arrive(3, 7);
  EXPECT_EQ(mine_.Lost(error).message(), "psum #7 over 'data' (16 MiB): " + error.message());
}

}  // namespace
}  // namespace jaxcomm::nccl

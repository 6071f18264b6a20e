#include "cc/gpu/nccl/arrival_report.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace jaxcomm::nccl {
namespace {

class ArrivalReportTest : public testing::Test {
 protected:
  ArrivalReportTest() : arrivals_(std::move(ArrivalTable::Open(testing::TempDir() + "/report", 4).value())) {
    for (uint32_t rank = 0; rank < 4; ++rank) arrivals_->Arrive(rank, 6);
    mine_ = {{"psum", "data", "", 16 << 20, 7}, 0, 4, arrivals_.get(), 7};
    mine_.Arrive();
  }
  ~ArrivalReportTest() override { std::remove((testing::TempDir() + "/report").c_str()); }

  std::unique_ptr<ArrivalTable> arrivals_;
  ArrivalReport mine_;
  std::chrono::milliseconds waited_{3000};
};

TEST_F(ArrivalReportTest, ALateRankIsNamedAsOnCpus) {
  arrivals_->Arrive(1, 7);
  arrivals_->Arrive(3, 7);
  const Status late = mine_.Late(waited_);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.message(),
            "DeadlineError: psum #7 over 'data' (16 MiB): rank 2 of 4 has not arrived after 3.0 s; 0,1,3 wait.");
  EXPECT_NE(late.record().find(R"("missing":[2],"waiting":[0,1,3],"seconds":3})"), std::string::npos) << late.record();
}

TEST_F(ArrivalReportTest, WhereNobodyIsKnownToBeMissingItSaysSo) {
  for (uint32_t rank = 1; rank < 4; ++rank) arrivals_->Arrive(rank, 7);
  const std::string message = "DeadlineError: psum #7 over 'data' (16 MiB): not all of the 4 ranks have finished ";
  EXPECT_EQ(mine_.Late(waited_).message(), message + "after 3.0 s; 0,1,2,3 wait.");
  mine_.arrivals = nullptr;
  EXPECT_EQ(mine_.Late(waited_).message(), message + "after 3.0 s; 0 waits.");
}

TEST_F(ArrivalReportTest, AnErrorOfNcclsNamesTheMissingRanksToo) {
  arrivals_->Arrive(1, 7);
  arrivals_->Arrive(2, 7);
  const Status error(Code::kInternal, "NCCL, rank 0 of 4: rail 0: remote process exited");
  EXPECT_EQ(mine_.Lost(error).message(),
            "psum #7 over 'data' (16 MiB): rank 3 of 4 has not arrived; NCCL, rank 0 of 4: rail 0: remote process "
            "exited");
  arrivals_->Arrive(3, 7);
  EXPECT_EQ(mine_.Lost(error).message(), "psum #7 over 'data' (16 MiB): " + error.message());
}

}  // namespace
}  // namespace jaxcomm::nccl

// Processes that part while this one goes on: after a notice that cannot be read, and for another job.
#include <string>
#include <vector>

#include "cc/executor/executor.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(Disconnect, AMalformedNoticeEndsItsSender) {
  Executor executor(/*num_threads=*/1);
  for (const std::string& notice : {std::string("garbage"), std::string(), std::string(100, '\1')}) {
    executor.events().OnNotice(3, notice);
  }
  const std::vector<AcrossProcesses::GoneProcess> gone = executor.gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].process, 3u);
  EXPECT_FALSE(gone[0].has_left);
  EXPECT_EQ(gone[0].why.message(),
            "process 3 has been cut off: it sent a notice of 7 bytes that cannot be read.\n"
            "  Cure: run the same jaxcomm in all processes.");
}

TEST(Disconnect, AFailureRecordsTheProcessForWhoseLackItIs) {
  Executor executor(/*num_threads=*/1);
  const Status why(Code::kInternal, "psum: rank 2 is gone: process 2 has died");
  executor.events().OnNotice(1, Encode(Failure{CallId{5, 0, 0, 0}, why, Failure::Gone{2, false}}));
  std::vector<AcrossProcesses::GoneProcess> gone = executor.gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].why.message(), "process 2 is gone, as process 1 reports");
  executor.events().OnPeerLeft(2, Status(Code::kInternal, "process 2 has left"));
  gone = executor.gone();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].why.message(), "process 2 has left");
  EXPECT_TRUE(gone[0].has_left);
}

TEST(Disconnect, ForgetsTheJob) {
  Executor executor(/*num_threads=*/1);
  executor.events().OnPeerGone(1, Status(Code::kInternal, "process 1 has died"));
  EXPECT_EQ(executor.LaunchOf(/*module=*/7, /*run=*/1), 0u);
  EXPECT_EQ(executor.LaunchOf(/*module=*/7, /*run=*/2), 1u);
  EXPECT_TRUE(executor.Disconnect(Clock::now()).ok());
  EXPECT_TRUE(executor.gone().empty());
  EXPECT_EQ(executor.LaunchOf(/*module=*/7, /*run=*/3), 0u);
}

}  // namespace
}  // namespace jaxcomm

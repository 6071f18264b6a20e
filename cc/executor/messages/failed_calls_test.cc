#include "cc/executor/messages/failed_calls.h"

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(FailedCalls, ACallThatBeginsFailsForItsOwnReasonOrForOneOfItsLaunch) {
  FailedCalls failed;
  failed.Add({77, 3, 5, 0}, Status(Code::kInternal, "five"), 1);
  failed.Add({77, 3, 6, 1}, Status(Code::kInternal, "six"), 2);
  EXPECT_EQ(failed.Find({77, 3, 6, 1}).message(), "six");
  EXPECT_EQ(failed.Find({77, 3, 6, 2}).message(), "five");
  EXPECT_EQ(failed.Find({77, 3, 0, 0}).message(), "five");
  for (const CallId& other : {CallId{77, 2, 5, 0}, CallId{77, 4, 5, 0}, CallId{76, 3, 5, 0}, CallId{78, 3, 5, 0}}) {
    EXPECT_TRUE(failed.Find(other).ok());
  }
  for (uint32_t launch = 10; launch < 10 + FailedCalls::kRemembered; ++launch) {
    failed.Add({77, launch, 0, 0}, Status(Code::kInternal, "later"), 1);
  }
  EXPECT_TRUE(failed.Find({77, 3, 5, 0}).ok());
}

}  // namespace
}  // namespace jaxcomm

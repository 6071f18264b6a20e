#include "cc/base/error_texts.h"

#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

const CallName kCall{"psum bucket 2 of 3", "host,nic", "3f9a01c2", 16 << 20, 41};
const std::string kFields = R"("name":"psum bucket 2 of 3","axes":"host,nic","plan":"3f9a01c2","number":41)";

TEST(Errors, NameACallOrAnyCallOfASite) {
  EXPECT_EQ(kCall.Text(), "psum bucket 2 of 3 #41 over 'host,nic' (16 MiB, plan 3f9a01c2)");
  EXPECT_EQ((CallName{"psum", "data", "", 4, 1}).Text(), "psum #1 over 'data' (4 B)");
  EXPECT_EQ((CallName{"psum", "data", "none"}).Text(), "psum over 'data'");
}

TEST(Errors, ADeadlineHasTheRanksInTextAndRecord) {
  const Status one = DeadlineExceeded{kCall, {3}, {0, 1, 2}, "4", milliseconds(60000)}.status();
  EXPECT_EQ(one.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(one.message(),
            "DeadlineError: " + kCall.Text() + ": rank 3 of 4 has not arrived after 60.0 s; 0,1,2 wait.");
  EXPECT_EQ(one.record(),
            R"({"error":"DeadlineError",)" + kFields + R"(,"missing":[3],"waiting":[0,1,2],"seconds":60})");
  const Status more =
      DeadlineExceeded{kCall, {5, 9}, {2}, "the group 2,5,9", milliseconds(1520), "sent all messages"}.status(
          "\n  More.");
  EXPECT_EQ(more.message(), "DeadlineError: " + kCall.Text() +
                                ": ranks 5,9 of the group 2,5,9 have not sent all messages after 1.5 s; 2 waits.\n  "
                                "More.");
  EXPECT_EQ(more.record(),
            R"({"error":"DeadlineError",)" + kFields + R"(,"missing":[5,9],"waiting":[2],"seconds":1.52})");
}

TEST(Errors, AMismatchHasBothSidesInTextAndRecord) {
  const Status groups = Mismatch{{"pmean", "a\"b", "groups"}, 2, "[0 1 1]", 0, "[1 0 0]"}.status();
  EXPECT_EQ(groups.message().rfind("MismatchError: pmean over 'a\"b': rank 2 has the groups [0 1 1], rank 0 "
                                   "has [1 0 0].\n  Cure: ",
                                   0),
            0u);
  EXPECT_EQ(
      groups.record(),
      R"({"error":"MismatchError","name":"pmean","axes":"a\"b","plan":"groups","groups":[[2,[0,1,1]],[0,[1,0,0]]]})");
  const Status cut = Mismatch{kCall, 2, "[0 1 1", 0, "[1 0 0]"}.status();
  EXPECT_EQ(cut.record(), R"({"error":"MismatchError",)" + kFields + R"(,"groups":[[0,[1,0,0]]]})");
  const Status calls =
      DifferentCalls{kCall, {1, "process 1 on node-b", "pmax, at train.py:60"}, {0, "process 0", "psum"}}.status();
  EXPECT_EQ(
      calls.message().rfind("MismatchError: " + kCall.Text() +
                                ": rank 1 (process 1 on node-b) is in pmax, at train.py:60; rank 0 (process 0) is "
                                "in psum.\n  Cure: ",
                            0),
      0u);
  EXPECT_EQ(calls.record(),
            R"({"error":"MismatchError",)" + kFields + R"(,"calls":[[1,"pmax, at train.py:60"],[0,"psum"]]})");
}

}  // namespace
}  // namespace jaxcomm

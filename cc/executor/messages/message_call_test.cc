#include "cc/executor/messages/message_call.h"

#include <memory>
#include <string>

#include "cc/executor/calls/call_site_stats.h"
#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// Process 0 of two processes with one rank each, in a call of all ranks.
class MessageCallTest : public testing::Test {
 protected:
  MessageCallTest() {
    const std::string list = "all_reduce/direct/2";
    const MessageGroup group{{{0, 0}, {1, 1}}, list, {lists_.Find(list, 0), nullptr}};
    site_ = MessageSite::Make({"psum", "data", "direct", "a.py:1"}, {Kind::kAllReduce, Reduction::kSum}, 1, 0, {group},
                              /*process=*/0)
                .value();
    EXPECT_TRUE(site_->SetLeaves({{DType::kF32, 64}}, stats_).ok());
  }

  // Returns the error of rank 0's call if rank 1 arrives with another call's fingerprint.
  std::string ErrorBesideAnotherCall(const Status& refused) {
    MessageCall call(site_, id_, /*number=*/1, /*first=*/0, Clock::now(), refused);
    const Arrival another{id_, /*rank=*/1, /*device=*/1, site_->fingerprint() + 1, "another call"};
    EXPECT_TRUE(call.PeerArrived(another, /*process=*/1, Clock::now()).failed);
    return call.failure().message();
  }

  const CallId id_{1, 0, 0, 0};
  MessageRegistry lists_;
  CallSiteStats stats_;
  std::shared_ptr<MessageSite> site_;
};

TEST_F(MessageCallTest, ARefusedCallFailsWithTheErrorOfItsRank) {
  EXPECT_EQ(ErrorBesideAnotherCall(InvalidArgument("rank 0 brings a wrong row")), "rank 0 brings a wrong row");
}

TEST_F(MessageCallTest, AnotherCallIsNamedIfNoRankRefuses) {
  EXPECT_NE(ErrorBesideAnotherCall(Status()).find("another call"), std::string::npos);
}

}  // namespace
}  // namespace jaxcomm

#include "cc/transport/rails/rails.h"

#include <string>

#include "cc/transport/rails/testing/rails_job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

class RailsTest : public RailsJob {};

TEST_F(RailsTest, SegmentsGoOverTheRailsByTheirSharesAndArriveWhicheverWayTheyCome) {
  MakeTwo();
  for (int i = 0; i < 40; ++i) {
    RailsMessage& message = New(0, 1, kLarge, kMiB);
    if (i % 2) Post(message);
    Send(message);
    if (i % 2 == 0) Post(message);
  }
  Run();
  ExpectAll();
  EXPECT_EQ(rails_[0].carried(), 30);
  EXPECT_EQ(rails_[1].carried(), 10);
}

TEST_F(RailsTest, NoticesAndSmallCallsAreOnTheFirstRail) {
  MakeTwo();
  for (int i = 0; i < 20; ++i) {
    nodes_[0].rails.Notify(1, std::to_string(i));
    RailsMessage& message = New(0, 1, 10, kMiB - 1);
    Post(message);
    Send(message);
  }
  Run();
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0].size(), 20u);
  EXPECT_EQ(rails_[1].carried(), 0);
}

TEST_F(RailsTest, ALargeMessageCountsAsSentOnceTheOtherSideHasIt) {
  MakeTwo();
  RailsMessage& large = New(0, 1, kLarge, kMiB);
  RailsMessage& small = New(0, 1, 10, kMiB);
  Send(large);
  Send(small);
  Run();
  EXPECT_EQ(large.sent.first, 0);
  EXPECT_EQ(small.sent.first, 1);
  Post(large);
  Post(small);
  Run();
  ExpectAll();
}

TEST_F(RailsTest, AllRailsAreFlushedWhereTheFirstNeedsNoHelp) {
  MakeTwo();
  nodes_[0].rails.Help(std::chrono::seconds(60), [] { return true; });
  EXPECT_GE(rails_[1].flushed(), 1);
}

TEST_F(RailsTest, NothingComesOfACancelledCall) {
  MakeTwo();
  for (int i = 0; i < 8; ++i) {
    RailsMessage& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Run(3);
  std::vector<CallbackState> received, sent;
  for (RailsNode& node : nodes_) node.rails.Cancel(messages_[0].id.call);
  for (const RailsMessage& message : messages_) {
    received.push_back(message.received);
    sent.push_back(message.sent);
  }
  rails_[0].Reset(0, 1);
  Run();
  for (size_t i = 0; i < messages_.size(); ++i) {
    EXPECT_EQ(messages_[i].received, received[i]);
    EXPECT_EQ(messages_[i].sent, sent[i]);
  }
  EXPECT_EQ(rails_[1].kept(1), 0u);
}

TEST(RailsTableTest, OnlyRailsThatLeadToAProcessHaveShares) {
  Rails rails(2, 3, nullptr);
  EXPECT_EQ(rails.AddProcess(1, {{0, {512, 0, 512}}}, {0, 1}).message(),
            "process 1 has a share on rail 2, which does not lead to it");
}

}  // namespace
}  // namespace jaxcomm

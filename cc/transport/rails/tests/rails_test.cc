#include "cc/transport/rails/rails.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/numbered_notices.h"
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

TEST_F(RailsTest, NoticesAndSmallMessagesAreOnTheFirstRailPostedNowhere) {
  MakeTwo();
  for (int i = 0; i < 20; ++i) {
    nodes_[0].rails.Notify(1, std::to_string(i));
    RailsMessage& message = New(0, 1, i % 2 ? 10 : Rails::kMaxSmall, kMiB);
    if (i % 3) Post(message);
    EXPECT_EQ(rails_[0].kept(1) + rails_[1].kept(1), 0u);
    Send(message);
  }
  EXPECT_FALSE(rails_[1].Step(random_));
  Run();
  for (int i = 0; i < 20; i += 3) Post(messages_[i]);
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0].size(), 20u);
  nodes_[1].rails.Notify(0, "which says what has come");
  Run();
  EXPECT_EQ(nodes_[0].rails.states()[0].bytes, 10 * 10 + 10 * Rails::kMaxSmall);
}

TEST_F(RailsTest, AnEventThatThrowsHoldsUpNoLaterOne) {
  MakeTwo();
  nodes_[1].on_notice = [this] {
    if (nodes_[1].notices[0].size() == 1) throw std::bad_alloc();
  };
  nodes_[0].rails.Notify(1, "a");
  EXPECT_THROW(Run(), std::bad_alloc);
  nodes_[0].rails.Notify(1, "b");
  Run();
  EXPECT_EQ(nodes_[1].notices[0], (std::vector<std::string>{"a", "b"}));
}

TEST_F(RailsTest, NewSharesHoldForWhatIsSentFromThenOn) {
  MakeTwo();
  Rails& sender = nodes_[0].rails;
  RailsMessage& before = New(0, 1, kLarge, kMiB);
  Send(before);  // not posted, so that the message is in flight when the shares change
  ASSERT_TRUE(sender.SetShares(1, {{0, {0, 1024}}}).ok());
  for (int i = 0; i < 40; ++i) {
    RailsMessage& message = New(0, 1, i % 2 ? 10 : kLarge, kMiB);
    Post(message);
    Send(message);
  }
  EXPECT_EQ(sender.states()[1].shares[0].second, 1024u);
  Post(before);
  Run();
  ExpectAll();
  EXPECT_EQ(rails_[0].carried(), 1);
  EXPECT_EQ(rails_[1].carried(), 20);
}

TEST_F(RailsTest, SharesThatCannotBeLeaveThoseBefore) {
  MakeTwo();
  Rails& sender = nodes_[0].rails;
  EXPECT_EQ(sender.SetShares(1, {{0, {1, 1024}}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sender.SetShares(1, {{0, {1024}}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sender.SetShares(7, {{0, {1024, 0}}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sender.states()[1].shares[1].second, 256u);
}

TEST_F(RailsTest, ASenderOfAnotherSizeIsCutOff) {
  for (const auto& [sent, expected] : {std::pair<int64_t, int64_t>(10, 11), {10, kLarge}, {kLarge, 10}}) {
    for (const bool is_early : {false, true}) {
      messages_.clear();
      rails_.clear();
      nodes_.clear();
      MakeTwo();
      RailsMessage& message = New(0, 1, sent, kMiB);
      message.memory.resize(static_cast<size_t>(expected));
      if (!is_early) Post(message);
      Send(message);
      Run();
      if (is_early) Post(message);
      const std::string why = "process 0 has been cut off: it sent " + NameOf(message.id) + " with " +
                              std::to_string(sent) + " bytes where " + std::to_string(expected) + " are expected";
      EXPECT_EQ(message.received, CallbackState(1, why));
      EXPECT_EQ(nodes_[1].gone[0], why);
      Run();
      EXPECT_EQ(nodes_[0].gone.size(), 1u);
    }
  }
}

TEST_F(RailsTest, ASenderOfTooManyEarlyMessagesIsCutOff) {
  MakeTwo();
  constexpr int64_t kRoom = Transport::kMaxEarlyBytes / (Rails::kMaxSmall + 256);
  for (int64_t i = 0; i <= kRoom; ++i) {
    EXPECT_TRUE(nodes_[1].gone.empty());
    Send(New(0, 1, Rails::kMaxSmall, kMiB));
    Run();
  }
  EXPECT_EQ(nodes_[1].gone[0], "process 0 has been cut off: it sent more early messages than this process can keep");
}

TEST_F(RailsTest, ASenderOfALargeMessageAmongNoticesIsCutOff) {
  MakeTwo();
  RailsMessage& large = New(0, 1, kLarge, kMiB);
  const Bytes before = large.memory;
  Post(large);
  std::string text(NumberedNotices::kHeaderBytes, '\0');
  AppendMessageId(text, large.id);
  text.append(kLarge, 'x');
  NumberedNotices its;
  nodes_[1].rails.events(0)->OnNotice(0, *its.Add(kMessage, std::move(text), kLarge));
  Run();
  EXPECT_EQ(nodes_[1].gone.at(0), "process 0 has been cut off: it sent a message too large to go with the notices");
  EXPECT_EQ(large.memory, before);
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

TEST_F(RailsTest, TheMemoryOfACopiedMessageMayChangeAtOnce) {
  MakeTwo();
  for (const bool fails : {false, true}) {
    RailsMessage& message = New(0, 1, kLarge, kMiB);
    Bytes given = message.bytes;
    EXPECT_TRUE(nodes_[0].rails.SendCopy({{1, message.id}}, {{given.data(), kLarge, 0}},
                                         [&message](const Status&) { ++message.sent.first; }));
    std::fill(given.begin(), given.end(), std::byte{0xff});
    Run();
    EXPECT_EQ(message.sent.first, 0);  // the other side has not received the message
    if (fails) rails_[0].Reset(0, 1);  // the message must be resent over the other rail
    Post(message);
    Run();
    ExpectAll();
  }
}

TEST_F(RailsTest, CopiesTakeNoMoreThanTheirLimit) {
  MakeTwo();
  const Bytes bytes(static_cast<size_t>(Transport::kMaxMessage));
  const auto copy = [&](uint32_t segment) {
    const MessageId id{{1, 1, 3, 4}, 0, 1, 0, segment, kMiB};
    return nodes_[0].rails.SendCopy({{1, id}}, {{bytes.data(), Transport::kMaxMessage, 0}}, [](const Status&) {});
  };
  const auto most = static_cast<uint32_t>(Rails::kMaxCopiedBytes / Transport::kMaxMessage);
  for (uint32_t segment = 0; segment < most; ++segment) EXPECT_TRUE(copy(segment));
  EXPECT_FALSE(copy(most));
  nodes_[0].rails.Cancel({1, 1, 3, 4});
  Run();
  const MessageId other{{1, 2, 3, 4}, 0, 1, 0, 0, kMiB};
  EXPECT_TRUE(
      nodes_[0].rails.SendCopy({{1, other}}, {{bytes.data(), Transport::kMaxMessage, 0}}, [](const Status&) {}));
}

TEST_F(RailsTest, SegmentsOfCallsThatAlternateAreDividedByTheSharesOfEach) {
  MakeTwo();
  for (uint32_t i = 0; i < 80; ++i) {
    RailsMessage& message = New(0, 1, kLarge, kMiB, /*call=*/1 + i % 2);
    message.id.segment = 0;  // each message has one segment
    message.id.index = i;
    PostAndSend(message);
  }
  Run();
  EXPECT_EQ(rails_[0].carried(), 60);
  EXPECT_EQ(rails_[1].carried(), 20);
}

TEST_F(RailsTest, AllRailsAreFlushedIfTheFirstNeedsNoHelp) {
  MakeTwo();
  nodes_[0].rails.Help(std::chrono::seconds(60), /*yields=*/false, [] { return true; });
  EXPECT_GE(rails_[1].flushed(), 1);
}

TEST_F(RailsTest, NothingComesOfACancelledCall) {
  MakeTwo();
  for (int i = 0; i < 8; ++i) {
    RailsMessage& message = New(0, 1, i % 2 ? kLarge : 10, kMiB);
    if (i % 4) Post(message);
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
  for (int i = 0; i < 8; i += 4) Post(messages_[i]);
  for (size_t i = 0; i < messages_.size(); ++i) {
    EXPECT_EQ(messages_[i].received, received[i]);
    EXPECT_EQ(messages_[i].sent, sent[i]);
  }
  EXPECT_EQ(rails_[1].kept(1), 0u);
}

TEST_F(RailsTest, AMessagesCallbackMayCancelTheCallOfAnotherThatCameWithIt) {
  MakeTwo();
  RailsMessage &first = New(0, 1, 10, kMiB, /*call=*/1), &second = New(0, 1, 10, kMiB, /*call=*/2);
  nodes_[1].rails.Post(0, first.id, {{first.memory.data(), 10, 0}}, false,
                       [&](const Status&, std::shared_ptr<const std::byte>) {
                         ++first.received.first;
                         nodes_[1].rails.Cancel(second.id.call);
                       });
  Post(second);
  NumberedNotices its;
  std::vector<NumberedNotices::Bytes> notices;
  for (const RailsMessage* message : {&first, &second}) {
    std::string text(NumberedNotices::kHeaderBytes, '\0');
    AppendMessageId(text, message->id);
    notices.push_back(its.Add(kMessage, text + std::string(10, 'x'), 10));
  }
  nodes_[1].rails.events(0)->OnNotice(0, *notices[1]);
  EXPECT_EQ(first.received.first, 0);
  nodes_[1].rails.events(0)->OnNotice(0, *notices[0]);
  EXPECT_EQ(first.received.first, 1);
  EXPECT_EQ(second.received.first, 0);
}

TEST_F(RailsTest, ACancelledMessageThatARailStillReadsIsReleasedAtOnce) {
  MakeTwo();
  for (FakeRail& rail : rails_) rail.HoldSents();
  RailsMessage& message = New(0, 1, kLarge, kMiB);
  Post(message);
  auto token = std::make_shared<int>(0);
  const std::weak_ptr<int> owned = token;
  int sent = 0;
  nodes_[0].rails.Send({{1, message.id}}, {{message.bytes.data(), kLarge, 0}},
                       [token = std::exchange(token, nullptr), &sent](const Status&) { ++sent; });
  Run();
  EXPECT_EQ(message.received.first, 1);
  EXPECT_EQ(sent, 0);
  nodes_[0].rails.Cancel(message.id.call);
  // Cancel must destroy the callback itself, because a rail would destroy the callback while holding the rail's lock.
  EXPECT_TRUE(owned.expired());
  for (FakeRail& rail : rails_) {
    for (const Sent& done : rail.TakeHeld()) done(Status());
  }
  EXPECT_EQ(sent, 0);
}

TEST_F(RailsTest, AMessageCountsAsSentOnceNoRailReadsIt) {
  MakeTwo();
  for (FakeRail& rail : rails_) rail.HoldSents();
  RailsMessage& message = New(0, 1, kLarge, kMiB);
  PostAndSend(message);
  Run();
  EXPECT_EQ(message.sent.first, 0);
  for (FakeRail& rail : rails_) {
    for (const Sent& done : rail.TakeHeld()) done(Status());
  }
  ExpectAll();
}

TEST(RailsTableTest, OnlyRailsThatLeadToAProcessHaveShares) {
  Rails rails(2, 3, nullptr);
  EXPECT_EQ(rails.AddProcess(1, {{0, {512, 0, 512}}}, {0, 1}).message(),
            "process 1 has a share on rail 2, which does not lead to it");
}

}  // namespace
}  // namespace jaxcomm

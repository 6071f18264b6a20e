// Tests lossy messages over rails that fail and are restored (lossy.cc).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/rails.h"
#include "cc/transport/rails/testing/rails_job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kSpan = kLarge / 8 * 8;  // bytes
constexpr int64_t kSpans = 4, kMayLose = 2 * kSpan + 1;

// A message from process 0 to process 1. The spans with even numbers are important.
struct LossyMessage {
  LossyMessage(uint32_t segment, int64_t span)
      : id{{1, 1, 3, 4}, 0, 1, 0, segment, kMiB},
        bytes(Pattern(kSpans * span, segment + 1)),
        memory(bytes.size(), std::byte{0x55}),
        span(span) {}

  MessageId id;
  Bytes bytes, memory;
  int64_t span;
  std::vector<ByteRange> lost;
  int received = 0, sent = 0;
};

class LossyRailsTest : public RailsJob {
 protected:
  LossyMessage& Make(int64_t span = kSpan) { return lossy_.emplace_back(static_cast<uint32_t>(lossy_.size()), span); }
  void PostLossy(LossyMessage& message) {
    std::vector<Span> spans;
    for (int64_t i = 0; i < kSpans; ++i)
      spans.push_back({message.memory.data() + i * message.span, message.span, i * message.span});
    nodes_[1].rails.PostLossy(
        0, message.id, spans, kMayLose,
        [&message](const Status& status, std::shared_ptr<const std::byte>, const std::vector<ByteRange>& lost) {
          EXPECT_TRUE(status.ok()) << status.message();
          ++message.received;
          message.lost = lost;
        });
  }
  void SendLossy(LossyMessage& message) {
    std::vector<ConstSpan> spans;
    for (int64_t i = 0; i < kSpans; ++i)
      spans.push_back({message.bytes.data() + i * message.span, message.span, i * message.span});
    nodes_[0].rails.SendLossy({1, message.id}, spans, {true, false, true, false}, kMayLose,
                              [&message](const Status& status) {
                                EXPECT_TRUE(status.ok()) << status.message();
                                ++message.sent;
                              });
  }
  // Expects that all bytes arrived except for the reported lost ranges, and that only bytes of spans with odd numbers
  // were lost.
  static void ExpectCome(const LossyMessage& message) {
    EXPECT_EQ(message.received, 1);
    EXPECT_EQ(message.sent, 1);
    Bytes expected = message.bytes;
    for (const ByteRange& lost : message.lost) {
      EXPECT_EQ(lost.begin / message.span % 2, 1);
      std::fill(expected.begin() + lost.begin, expected.begin() + lost.end, std::byte{0});
    }
    EXPECT_TRUE(message.memory == expected);
  }
  // Restores rail 1 on the side of `process`.
  Status Restore(uint32_t process, uint32_t fences) {
    return nodes_[process].rails.Restore({1 - process, 1, fences}, [] { return Status(); });
  }

  std::deque<LossyMessage> lossy_;
};

TEST_F(LossyRailsTest, EachMessageLosesItsPartOnItsRail) {
  MakeTwo();
  for (int i = 0; i < 8; ++i) PostLossy(Make(i % 2 ? kSpan : kSpan / 16 * 8));
  PostLossy(Make(16));  // a small message, which is sent with the notices
  for (LossyMessage& message : lossy_) SendLossy(message);
  Run();
  for (const LossyMessage& message : lossy_) {
    ExpectCome(message);
    EXPECT_EQ(message.lost.size(), message.span == 16 ? 0u : 2u);
  }
  EXPECT_GT(rails_[0].lossy(), 0);
  EXPECT_GT(rails_[1].lossy(), 0);
}

TEST_F(LossyRailsTest, LossyMessagesOfAFailedRailComeOverTheOther) {
  MakeTwo();
  for (int i = 0; i < 16; ++i) PostLossy(Make());
  for (LossyMessage& message : lossy_) SendLossy(message);
  Run(6);
  rails_[1].Reset(0, 1);
  Run();
  for (const LossyMessage& message : lossy_) {
    ExpectCome(message);
    EXPECT_EQ(message.lost.size(), 2u);  // only the delivering rail's lost ranges count, not the failed rail's
  }
  EXPECT_GT(rails_[0].lossy() + rails_[1].lossy(), 16);
}

TEST_F(LossyRailsTest, OverARestoredRailNothingIsLostUntilAllIsPostedThere) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const uint32_t fences = nodes_[0].rails.lost().at(0).fences;
  for (int i = 0; i < 8; ++i) PostLossy(Make());
  rails_[1].Reconnect(0, 1);
  // The sender restores the rail first, and sends messages before the receiver has posted any message on that rail.
  EXPECT_TRUE(Restore(0, fences).ok());
  const int before = rails_[1].carried();
  rails_[1].BeforePost([&] {
    for (LossyMessage& message : lossy_) SendLossy(message);
    Run();
  });
  EXPECT_TRUE(Restore(1, fences).ok());
  EXPECT_GT(rails_[1].carried(), before);
  EXPECT_EQ(rails_[1].lossy(), 0);
  Run();
  for (const LossyMessage& message : lossy_) ExpectCome(message);

  const size_t first = lossy_.size();
  for (size_t i = 0; i < first; ++i) PostLossy(Make());
  for (size_t i = first; i < lossy_.size(); ++i) SendLossy(lossy_[i]);
  Run();
  for (const LossyMessage& message : lossy_) ExpectCome(message);
  EXPECT_GT(rails_[1].lossy(), 0);
}

TEST_F(LossyRailsTest, AMessageOfTooManySpansIsAnError) {
  MakeTwo();
  const std::byte byte{1};
  std::vector<ConstSpan> spans;
  for (int64_t at = 0; at <= static_cast<int64_t>(LossyTransport::kMaxSpans); ++at) spans.push_back({&byte, 1, at});
  std::string why;
  nodes_[0].rails.SendLossy({1, {}}, spans, std::vector<bool>(spans.size()), 1,
                            [&why](const Status& status) { why = status.message(); });
  EXPECT_EQ(why, "a lossy message of 1025 spans, more than 1024");
}

TEST_F(LossyRailsTest, AMessageThatWasPostedAsLossyMayComeWhole) {
  MakeTwo();
  LossyMessage& message = Make();
  PostLossy(message);
  const Bytes& bytes = message.bytes;
  nodes_[0].rails.Send({{1, message.id}}, {{bytes.data(), static_cast<int64_t>(bytes.size()), 0}},
                       [&message](const Status&) { ++message.sent; });
  Run();
  ExpectCome(message);
  EXPECT_TRUE(message.lost.empty());
}

}  // namespace
}  // namespace jaxcomm

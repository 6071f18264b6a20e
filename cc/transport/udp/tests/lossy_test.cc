// Tests of messages that may lose a part.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/testing/node.h"
#include "cc/transport/udp/udp_transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr size_t kSpan = 1024;  // bytes

struct LossyMessage {
  LossyMessage(uint32_t index, size_t size, int64_t may_lose, std::mt19937& random)
      : index(index), may_lose(may_lose), data(Pattern(size, index)), into(size, std::byte{0xEE}) {
    for (std::byte& byte : data) byte |= std::byte{1};  // no byte is zero
    for (size_t at = 0; at < size; at += kSpan) important.push_back(random() % 2 == 0);
  }
  template <typename Span, typename Data>
  std::vector<Span> Spans(Data& bytes) const {
    std::vector<Span> spans;
    for (size_t at = 0; at < bytes.size(); at += kSpan) {
      spans.push_back(
          {bytes.data() + at, static_cast<int64_t>(std::min(kSpan, bytes.size() - at)), static_cast<int64_t>(at)});
    }
    return spans;
  }

  LossLimit limit() const { return {may_lose, until}; }

  uint32_t index;
  int64_t may_lose;
  std::optional<LossLimit::TimePoint> until;
  Bytes data, into;
  std::vector<bool> important;
  std::vector<ByteRange> lost;
};

void Exchange(UdpNode& from, UdpNode& to, std::vector<std::unique_ptr<LossyMessage>>& messages) {
  for (const auto& message : messages) {
    to.transport->PostLossy(from.process, Id(1, from.process, to.process, message->index),
                            message->Spans<Span>(message->into), message->limit(),
                            [&lost = message->lost, done = to.OnReceived()](
                                const Status& status, std::shared_ptr<const std::byte>, const auto& ranges) {
                              lost = ranges;
                              done(status, nullptr);
                            });
  }
  for (const auto& message : messages) {
    from.transport->SendLossy({to.process, Id(1, from.process, to.process, message->index)},
                              message->Spans<ConstSpan>(std::as_const(message->data)), message->important,
                              message->limit(), from.OnSent());
  }
  from.transport->Flush();
  const auto count = static_cast<int>(messages.size());
  to.Await([&] { return to.received + to.failed == count; });
  from.Await([&] { return from.sent + from.failed == count; });
  EXPECT_EQ(to.failed + from.failed, 0);
}

// Checks the arrived bytes of the message, and returns the number of lost bytes.
int64_t Check(const LossyMessage& message) {
  Bytes expected = message.data;
  int64_t lost = 0, end = 0;
  for (const ByteRange& range : message.lost) {
    EXPECT_GE(range.begin, end);
    EXPECT_EQ(range.begin % 8, 0);
    end = range.end;
    lost += range.end - range.begin;
    EXPECT_FALSE(message.important[static_cast<size_t>(range.begin) / kSpan]);
    EXPECT_EQ(static_cast<size_t>(range.begin) / kSpan, static_cast<size_t>(range.end - 1) / kSpan);
    std::fill(expected.begin() + range.begin, expected.begin() + range.end, std::byte{0});
  }
  EXPECT_LE(lost, message.may_lose);
  EXPECT_TRUE(Same(message.into, expected)) << "message " << message.index;
  return lost;
}

std::vector<std::unique_ptr<LossyMessage>> Messages(uint32_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<LossyMessage>> messages;
  for (uint32_t index = 0; index < count; ++index) {
    const size_t size = random() % 4 ? 8 * (random() % 32768) : 8 * (random() % 250);
    messages.push_back(std::make_unique<LossyMessage>(index, size, static_cast<int64_t>(size / 10), random));
  }
  return messages;
}

TEST(LossyTest, OnABadLineOnlyUnimportantBytesAreLost) {
  int64_t lost = 0;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    BadLine line({seed, /*lost=*/0.02 * seed, /*doubled=*/0.01, /*late=*/0.02});
    UdpNode a(0), b(1);
    Connect(a, b, &line);
    auto messages = Messages(60, seed);
    Exchange(a, b, messages);
    for (const auto& message : messages) lost += Check(*message);
  }
  EXPECT_GT(lost, 0);
}

TEST(LossyTest, OnAGoodLineNothingIsLost) {
  UdpNode a(0), b(1);
  Connect(a, b, nullptr, /*packet_bytes=*/8972);
  auto messages = Messages(60, 5);
  Exchange(a, b, messages);
  for (const auto& message : messages) EXPECT_EQ(Check(*message), 0);
}

TEST(LossyTest, TheLongestMessageComes) {
  UdpNode a(0), b(1);
  Connect(a, b);
  std::mt19937 random(6);
  std::vector<std::unique_ptr<LossyMessage>> messages;
  messages.push_back(std::make_unique<LossyMessage>(0, Transport::kMaxMessage, 1000, random));
  Exchange(a, b, messages);
  EXPECT_EQ(Check(*messages[0]), 0);
}

TEST(LossyTest, AMessageThatMayLoseNoByteLosesNone) {
  BadLine line({/*seed=*/9, /*lost=*/0.1, /*doubled=*/0, /*late=*/0});
  UdpNode a(0), b(1);
  Connect(a, b, &line);
  auto messages = Messages(20, 9);
  for (const auto& message : messages) message->may_lose = 0;
  Exchange(a, b, messages);
  for (const auto& message : messages) EXPECT_EQ(Check(*message), 0);
}

TEST(LossyTest, BeforeItsTimeLimitAMessageLosesNothing) {
  BadLine line({/*seed=*/11, /*lost=*/0.1, /*doubled=*/0.01, /*late=*/0.02});
  UdpNode a(0), b(1);
  Connect(a, b, &line);
  auto messages = Messages(20, 11);
  for (const auto& message : messages) message->until = LossLimit::TimePoint::max();
  Exchange(a, b, messages);
  for (const auto& message : messages) EXPECT_EQ(Check(*message), 0);
}

TEST(LossyTest, AfterItsTimeLimitAMessageLosesOnlyWholeUnimportantSpans) {
  int64_t lost = 0;
  for (const unsigned seed : {1u, 2u, 3u, 4u}) {
    BadLine line({seed, /*lost=*/0.1, /*doubled=*/0.01, /*late=*/0.02});
    UdpNode a(0), b(1);
    Connect(a, b, &line);
    auto messages = Messages(40, seed);
    for (const auto& message : messages) {
      message->until = std::chrono::steady_clock::now() + std::chrono::milliseconds(message->index % 8);
    }
    Exchange(a, b, messages);
    for (const auto& message : messages) {
      lost += Check(*message);
      for (const ByteRange& range : message->lost) {
        EXPECT_EQ(range.begin % static_cast<int64_t>(kSpan), 0);
        EXPECT_EQ(range.end,
                  std::min(range.begin + static_cast<int64_t>(kSpan), static_cast<int64_t>(message->data.size())));
      }
    }
  }
  EXPECT_GT(lost, 0);
}

TEST(LossyTest, OverSeveralPathsAMessageLosesOnlyWhatItMay) {
  int64_t lost = 0;
  for (const bool has_time_limit : {false, true}) {
    std::deque<BadLine> lines;
    for (unsigned i = 0; i < 3; ++i)
      lines.emplace_back(BadLine::Faults{/*seed=*/i, /*lost=*/0.05 * i, 0, /*late=*/0.02});
    UdpNode a(0), b(1);
    const auto [to_b, to_a] = PathsOver(lines);
    EXPECT_TRUE(a.transport->AddPeer(1, to_b).ok());
    EXPECT_TRUE(b.transport->AddPeer(0, to_a).ok());
    auto messages = Messages(60, 13);
    for (const auto& message : messages) {
      if (has_time_limit)
        message->until = std::chrono::steady_clock::now() + std::chrono::milliseconds(message->index % 8);
    }
    Exchange(a, b, messages);
    for (const auto& message : messages) lost += Check(*message);
  }
  EXPECT_GT(lost, 0);
}

// The receiver's answers show that it has finished the message, so the sender sends nothing more of it.
TEST(LossyTest, TheSenderStopsWhenTheReceiverHasEnough) {
  UdpNode a(0), b(1);
  Connect(a, b);
  std::mt19937 random(12);
  std::vector<std::unique_ptr<LossyMessage>> messages;
  messages.push_back(std::make_unique<LossyMessage>(0, Transport::kMaxMessage, Transport::kMaxMessage, random));
  messages[0]->important.assign(messages[0]->important.size(), false);
  messages[0]->until = std::chrono::steady_clock::now();
  Exchange(a, b, messages);
  EXPECT_GT(Check(*messages[0]), 0);
}

TEST(LossyTest, AnUnexpectedMessageIsDropped) {
  BadLine line({/*seed=*/3, /*lost=*/0.05, /*doubled=*/0, /*late=*/0});
  UdpNode a(0), b(1);
  Connect(a, b, &line);
  auto messages = Messages(8, 3);
  for (const auto& message : messages) {
    a.transport->SendLossy({1, Id(7, 0, 1, message->index)}, message->Spans<ConstSpan>(std::as_const(message->data)),
                           message->important, message->may_lose, a.OnSent());
  }
  a.transport->Flush();
  a.Await([&] { return a.sent == 8; });
}

TEST(LossyTest, BothSidesMustAgreeOnTheLoss) {
  UdpNode a(0), b(1);
  Connect(a, b);
  std::mt19937 random(1);
  LossyMessage message(0, 8000, 800, random);
  b.transport->PostLossy(0, Id(1, 0, 1, 0), message.Spans<Span>(message.into), 799,
                         [done = b.OnReceived()](const Status& status, auto view, const auto&) { done(status, view); });
  a.transport->SendLossy({1, Id(1, 0, 1, 0)}, message.Spans<ConstSpan>(std::as_const(message.data)), message.important,
                         message.may_lose, a.OnSent());
  a.transport->Flush();
  EXPECT_EQ(
      b.AwaitGone(0),
      "process 0 has been cut off: it sent segment 0 of message 0 from rank 0 to rank 1 of call 1.0.0 that may lose "
      "800 bytes where 799 are expected");
  b.Await([&] { return b.failed == 1; });
}

TEST(LossyTest, ImportantPacketsAreMarkedForSwitches) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  raw.ReceiveMarks();
  std::mt19937 random(2);
  LossyMessage message(0, 64 * kSpan, 6000, random);
  const auto important = std::count(message.important.begin(), message.important.end(), true);
  const size_t reliable = LossyFrontBytes(message.important.size()) + kSpan * static_cast<size_t>(important);
  a.transport->SendLossy({1, Id(1, 0, 1, 0)}, message.Spans<ConstSpan>(std::as_const(message.data)), message.important,
                         message.may_lose, a.OnSent());
  a.transport->Flush();
  int ordinary = 0;
  for (;;) {
    const auto [header, marks] = raw.ReadMarked();
    EXPECT_EQ(marks, header.kind == PacketKind::kLossy && header.offset >= reliable ? 0x00 : 0x02);
    ordinary += marks == 0;
    if (header.kind == PacketKind::kProbe) break;  // the probe follows the last packet
  }
  EXPECT_GT(ordinary, 0);
  raw.SendBytes(raw.Seal(PacketKind::kOrdered, 0, {FrameType::kNotice, 4, MessageId()}, Bytes(4)));
  auto next = raw.ReadMarked();
  while (next.first.kind != PacketKind::kAnswer) next = raw.ReadMarked();  // skips retransmitted packets
  EXPECT_EQ(next.second, 0xC2);
}

TEST(LossyTest, NoByteOfACancelledMessageIsStored) {
  BadLine line({/*seed=*/4, /*lost=*/0.05, /*doubled=*/0, /*late=*/0});
  UdpNode a(0), b(1);
  Connect(a, b, &line);
  auto messages = Messages(30, 4);
  for (const auto& message : messages) {
    b.transport->PostLossy(0, Id(1, 0, 1, message->index), message->Spans<Span>(message->into), message->may_lose,
                           [](const Status&, auto, const auto&) {});
    a.transport->SendLossy({1, Id(1, 0, 1, message->index)}, message->Spans<ConstSpan>(std::as_const(message->data)),
                           message->important, message->may_lose, a.OnSent());
  }
  a.transport->Flush();
  b.transport->Cancel(Id(1, 0, 1, 0).call);
  for (const auto& message : messages) std::fill(message->into.begin(), message->into.end(), std::byte{7});
  a.Await([&] { return a.sent == 30; });
  for (const auto& message : messages) EXPECT_TRUE(Same(message->into, Bytes(message->into.size(), std::byte{7})));
}

TEST(LossyFrameTest, OnlyEncodedFramesAreDecoded) {
  const Header header{FrameType::kMessage, 1 << 18, Id(1, 0, 1, 2)};
  for (const size_t spans : {size_t{0}, size_t{1}, size_t{8}, size_t{257}}) {
    Lossy lossy{static_cast<uint32_t>(LossyFrontBytes(spans) + 100), 1000, {}};
    for (size_t i = 0; i < spans; ++i) lossy.important.push_back(i % 3 == 0);
    const std::vector<std::byte> front = EncodeLossy(header, lossy);
    EXPECT_EQ(front.size(), LossyFrontBytes(spans));
    EXPECT_EQ(front.size() % 8, 0u);
    const Result<Lossy> decoded = DecodeLossy(front.data(), front.size(), 1 << 18);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded.value().important, lossy.important);
    EXPECT_EQ(decoded.value().reliable, lossy.reliable);
    EXPECT_EQ(decoded.value().may_lose, 1000u);
    EXPECT_FALSE(DecodeLossy(front.data(), front.size() - 8, 1 << 18).ok());
    EXPECT_FALSE(DecodeLossy(front.data(), front.size(), lossy.reliable - 1).ok());
  }
}

}  // namespace
}  // namespace jaxcomm

#include "cc/transport/udp/send_queue.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/little_endian.h"
#include "cc/transport/udp/lossy_frame.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr size_t kFragment = 64;

// A queue, and a receiver that gets all packets of the queue except the packets that a test declares lost.
class SendQueueTest : public testing::Test {
 protected:
  void Push(uint32_t bytes) {
    data_.emplace_back(bytes);
    const std::vector<ConstSpan> spans = {{data_.back().data(), bytes, 0}};
    queue_.Push({FrameType::kMessage, bytes, MessageId()},
                std::make_shared<Outgoing>(Outgoing{CallId(), spans, 1, Status(), nullptr}));
  }
  int Send(int most = 1000) {
    int count = 0;
    for (std::optional<PacketHeader> header; count < most && (header = Next()); ++count) newest_ = header->number;
    return count;
  }
  void Probe() { newest_ = queue_.Probe(++now_, /*path=*/0, queue_.LastPriority()).number; }
  // Acknowledges all packets up to the newest one, except the packets that are `lost[i]` places before the newest one.
  // `finished`: number of messages that the receiver has finished.
  Answered Answer(const std::vector<size_t>& lost = {}, uint64_t finished = 0) {
    std::array<std::byte, kAnswerBytes> bits;
    bits.fill(std::byte{0xFF});
    for (const size_t back : lost) bits[back / 8] &= ~static_cast<std::byte>(1 << (back % 8));
    StoreNumber<uint64_t>(finished, bits.data() + kAnsweredPackets / 8);
    std::vector<std::shared_ptr<Outgoing>> done;
    const Result<Answered> answered =
        queue_.Take({PacketKind::kAnswer, false, ++answers_, newest_, 0, 0}, bits.data(), &done);
    EXPECT_TRUE(answered.ok());
    done_ += done.size();
    return answered.value();
  }

  // Acknowledges the packets up to number `newest`.
  void AnswerTo(uint64_t newest, uint64_t finished) {
    const uint64_t sent = std::exchange(newest_, newest);
    Answer({}, finished);
    newest_ = sent;
  }
  uint64_t newest() const { return newest_; }

  SendQueue queue_{kFragment, /*window=*/1 << 20};
  size_t done_ = 0;

 private:
  std::optional<PacketHeader> Next() {
    std::array<std::byte, kFragment> bytes;
    size_t size;
    return queue_.Next(++now_, bytes.data(), &size);
  }

  std::vector<std::vector<std::byte>> data_;
  int64_t now_ = 0;
  uint64_t newest_ = 0, answers_ = 0;
};

TEST_F(SendQueueTest, BehindTheLastPacketOfAMessageAProbeIsDueAlsoWhenItIsSentAgain) {
  Push(1000);
  EXPECT_EQ(Send(3), 3);
  EXPECT_FALSE(queue_.ends_message());
  Send();
  EXPECT_TRUE(queue_.ends_message());
  Probe();
  EXPECT_FALSE(queue_.ends_message());
  const Answered answered = Answer(/*lost=*/{1});  // only the probe shows that the last packet is lost
  EXPECT_EQ(answered.lost, 1);
  EXPECT_EQ(done_, 0u);
  EXPECT_EQ(Send(), 1);
  EXPECT_TRUE(queue_.ends_message());
  Probe();
  Answer();
  EXPECT_EQ(done_, 1u);
}

TEST_F(SendQueueTest, WhatTheReceiverHasFinishedIsNotSentAnyFurther) {
  Push(1000);
  Push(1000);
  EXPECT_EQ(Send(10), 10);
  Answer(/*lost=*/{0, 3});
  EXPECT_EQ(Send(4), 4);                 // the two lost packets, and two more
  Answer(/*lost=*/{1}, /*finished=*/1);  // nothing of the first message is left to send
  EXPECT_EQ(done_, 1u);
  EXPECT_EQ(Send(), 17);                       // kHeaderBytes + 1000 bytes of the second message
  Answer(/*lost=*/{0, 1, 2}, /*finished=*/3);  // no such message has been begun
  EXPECT_EQ(done_, 1u);
  EXPECT_EQ(Send(), 3);
  Answer(/*lost=*/{0}, /*finished=*/2);
  EXPECT_EQ(done_, 2u);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(Send(), 0);
  EXPECT_EQ(queue_.copied_bytes(), 0u);
}

TEST_F(SendQueueTest, PacketsOfAFinishedMessageThatCouldNotBeSentAreDropped) {
  Push(1000);
  EXPECT_EQ(Send(2), 2);
  const uint64_t before = newest();
  EXPECT_EQ(Send(3), 3);
  AnswerTo(before, /*finished=*/1);  // arrives while the last three packets are being sent
  EXPECT_EQ(done_, 1u);
  queue_.Unsend(3);
  EXPECT_EQ(Send(), 0);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(SendQueueTest, ACopiedMessageNeedsNoProbe) {
  queue_.PushCopy({FrameType::kNotice, 0, MessageId()}, {});
  EXPECT_EQ(Send(), 1);
  EXPECT_FALSE(queue_.ends_message());
}

TEST_F(SendQueueTest, APauseIsATimeWithoutMessagesToSend) {
  EXPECT_TRUE(queue_.has_paused());
  Push(1000);
  Send(2);
  Answer();
  EXPECT_FALSE(queue_.is_under_way());
  EXPECT_FALSE(queue_.has_paused());
  Send();
  Answer(/*lost=*/{0});
  EXPECT_FALSE(queue_.has_paused());
  Send();
  Answer();
  EXPECT_TRUE(queue_.has_paused());
  Push(1000);
  EXPECT_TRUE(queue_.has_paused());
  Send(1);
  EXPECT_FALSE(queue_.has_paused());
}

// A queue for two paths.
class SendQueuePathsTest : public testing::Test {
 protected:
  void Push(uint32_t bytes) {
    data_.emplace_back(bytes);
    queue_.Push({FrameType::kMessage, bytes, MessageId()}, MessageOf(bytes));
  }
  // Pushes a message whose bytes may all be lost, apart from its front.
  void PushLossy(uint32_t bytes) {
    data_.emplace_back(bytes);
    queue_.PushLossy(MessageId(), {false}, /*may_lose=*/bytes, MessageOf(bytes));
  }
  std::optional<PacketHeader> Next(size_t path) {
    std::array<std::byte, kFragment> bytes;
    size_t size;
    return queue_.Next(++now_, bytes.data(), &size, path);
  }
  // Acknowledges the path's packets up to `newest`, except the packets with the numbers `lost`.
  Answered Answer(size_t path, uint64_t newest, const std::vector<uint64_t>& lost = {}) {
    std::array<std::byte, kAnswerBytes> bits;
    bits.fill(std::byte{0xFF});
    for (const uint64_t each : lost) bits[(newest - each) / 8] &= ~static_cast<std::byte>(1 << ((newest - each) % 8));
    std::vector<std::shared_ptr<Outgoing>> done;
    const Result<Answered> answered =
        queue_.Take({PacketKind::kAnswer, false, ++answers_, newest, 0, 0}, bits.data(), &done, path);
    EXPECT_TRUE(answered.ok());
    done_ += done.size();
    return answered.value();
  }

  SendQueue queue_{kFragment, /*window=*/1 << 20, /*paths=*/2};
  size_t done_ = 0;

 private:
  std::shared_ptr<Outgoing> MessageOf(uint32_t bytes) {
    const std::vector<ConstSpan> spans = {{data_.back().data(), bytes, 0}};
    return std::make_shared<Outgoing>(Outgoing{CallId(), spans, 1, Status(), nullptr});
  }

  std::deque<std::vector<std::byte>> data_;
  int64_t now_ = 0;
  uint64_t answers_ = 0;
};

TEST_F(SendQueuePathsTest, OnlyLaterPacketsOfThePathShowALoss) {
  Push(4 * kFragment - kHeaderBytes);
  for (const size_t path : {0, 1}) {
    for (const uint64_t number : {0, 1}) EXPECT_EQ(Next(path)->number, number);
  }
  EXPECT_EQ(Answer(/*path=*/1, /*newest=*/1).lost, 0);
  EXPECT_EQ(queue_.under_way(0), 2u);
  EXPECT_FALSE(queue_.has_next());
  EXPECT_EQ(Answer(/*path=*/0, /*newest=*/1, /*lost=*/{0}).lost, 1);
  EXPECT_EQ(queue_.waiting_bytes(), static_cast<int64_t>(kFragment));
  EXPECT_EQ(Next(/*path=*/1)->offset, 0u);
  Answer(/*path=*/1, /*newest=*/2);
  EXPECT_EQ(done_, 1u);
}

TEST_F(SendQueuePathsTest, AnotherPathRetransmitsWhatAPathIsGivenUpWith) {
  Push(3 * kFragment - kHeaderBytes);
  for (int i = 0; i < 3; ++i) Next(/*path=*/0);
  std::vector<std::shared_ptr<Outgoing>> done;
  queue_.GiveUp(/*path=*/0, &done);
  EXPECT_TRUE(done.empty());
  EXPECT_FALSE(queue_.is_under_way(0));
  EXPECT_EQ(queue_.waiting_bytes(), static_cast<int64_t>(3 * kFragment));
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(Next(/*path=*/1)->offset, i * kFragment);
  EXPECT_EQ(Answer(/*path=*/0, /*newest=*/2).packets, 0);  // a late acknowledgement
  EXPECT_EQ(queue_.Probe(1, /*path=*/0, 0).number, 3u);
  Answer(/*path=*/1, /*newest=*/2);
  EXPECT_EQ(done_, 1u);
}

TEST_F(SendQueuePathsTest, ALossyMessageIsNotSentWhileAnotherPathCarriesItsBytes) {
  PushLossy(4 * kFragment - LossyFrontBytes(1));
  for (const size_t path : {0, 0, 1, 1}) EXPECT_EQ(Next(path)->sent, 0);
  EXPECT_EQ(queue_.Probe(1, /*path=*/0, 0).sent, 0);  // packets of path 1 may be late
  EXPECT_EQ(queue_.Probe(1, /*path=*/1, 0).sent, 0);
  Answer(/*path=*/1, /*newest=*/2, /*lost=*/{0});
  EXPECT_EQ(done_, 0u);
  EXPECT_EQ(queue_.Probe(1, /*path=*/0, 0).sent,
            1);  // later than the packets that are still in flight, on its own path
  EXPECT_FALSE(queue_.OwedProbe());
  Answer(/*path=*/0, /*newest=*/3);
  EXPECT_EQ(done_, 1u);
  EXPECT_TRUE(queue_.OwedProbe());
  EXPECT_EQ(queue_.Probe(1, /*path=*/1, 0).sent, 1);
  EXPECT_FALSE(queue_.OwedProbe());
}

TEST_F(SendQueuePathsTest, APathPausesWhenNothingIsLeftForIt) {
  Push(3 * kFragment - kHeaderBytes);
  Next(/*path=*/0);
  Next(/*path=*/1);
  Answer(/*path=*/1, /*newest=*/0);
  EXPECT_FALSE(queue_.has_paused(1));  // it waits until its rate allows more packets
  Next(/*path=*/0);
  EXPECT_TRUE(queue_.has_paused(1));
  EXPECT_FALSE(queue_.has_paused(0));
}

// A queue with two priorities, whose later one any switch may delay.
class PrioritiesTest : public SendQueueTest {
 protected:
  // Queues a message of four packets.
  void Push(uint32_t priority, bool is_lossy = false) {
    const auto front = static_cast<uint32_t>(is_lossy ? LossyFrontBytes(1) : kHeaderBytes);
    const uint32_t bytes = 4 * kFragment - front;
    const std::vector<ConstSpan> spans = {{zeros_.data(), bytes, 0}};
    const auto message = std::make_shared<Outgoing>(Outgoing{CallId(), spans, 1, Status(), nullptr});
    if (is_lossy) {
      queue_.PushLossy(MessageId(), {false}, LossLimit(bytes), message, priority);
    } else {
      queue_.Push({FrameType::kMessage, bytes, MessageId()}, message, priority);
    }
  }
  PacketHeader Next() {
    std::array<std::byte, kFragment> bytes;
    size_t size;
    return queue_.Next(1, bytes.data(), &size).value();
  }

  PrioritiesTest() { queue_ = SendQueue(kFragment, /*window=*/1 << 20, /*paths=*/1, /*priorities=*/2); }

 private:
  const std::array<std::byte, 4 * kFragment> zeros_ = {};
};

TEST_F(PrioritiesTest, PacketsOfTheFirstPriorityAreNextAlthoughAnotherMessageIsPartlySent) {
  Push(7);  // gets the last priority
  EXPECT_EQ(queue_.PeekNext().priority, 1u);
  EXPECT_EQ(Next().frame, 0u);
  Push(0);
  EXPECT_EQ(queue_.PeekNext().priority, 0u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().frame, 1u);
  EXPECT_EQ(queue_.PeekNext().priority, 1u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Next().frame, 0u);
  EXPECT_FALSE(queue_.has_next());
  EXPECT_EQ(queue_.waiting_bytes(), 0);
}

TEST_F(PrioritiesTest, APacketThatAnEarlierPriorityHasOvertakenIsStillInFlight) {
  Push(1);
  EXPECT_EQ(Send(2), 2);
  Push(0);
  EXPECT_EQ(Send(4), 4);
  Answered answered = Answer({4, 5});
  EXPECT_EQ(answered.packets, 4);
  EXPECT_EQ(answered.lost, 0);
  EXPECT_EQ(queue_.under_way(), 2u);
  EXPECT_EQ(Send(), 2);  // two packets of the later priority
  answered = Answer({6, 7});
  EXPECT_EQ(answered.packets, 4);
  EXPECT_EQ(answered.lost, 2);
  EXPECT_EQ(Send(), 2);
  EXPECT_EQ(Answer().lost, 0);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(done_, 2u);
}

TEST_F(PrioritiesTest, AProbeIsSentWithTheLastPriorityAndShowsWhatIsLost) {
  Push(1);
  Send();
  Push(0);
  Send();
  EXPECT_TRUE(queue_.ends_message());
  EXPECT_EQ(queue_.LastPriority(), 1u);
  Probe();
  EXPECT_EQ(queue_.LastPriority(), 1u);
  EXPECT_EQ(Answer({1, 8}).lost, 2);
  EXPECT_EQ(queue_.LastPriority(), 0u);
  EXPECT_EQ(Send(), 2);
}

TEST_F(PrioritiesTest, AMessageCountsAsSentOnlyAfterTheEarlierOneOfAnotherPriority) {
  Push(1);
  Next();
  Push(0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().sent, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Next().sent, i < 2 ? 0 : 2);
}

TEST_F(PrioritiesTest, LossyBytesThatMayBeOvertakenDoNotCountAsSent) {
  Push(1, /*is_lossy=*/true);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().sent, i < 3 ? 0 : 1);
  Push(0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().sent, 0);
  Push(1);
  EXPECT_EQ(Next().sent, 2);  // behind the lossy bytes
}

TEST_F(PrioritiesTest, AnEarlyMessageIsSentAgainIfItsLossWouldWaitForALaterPriority) {
  Push(1);
  Send(1);
  Push(0, /*is_lossy=*/true);
  EXPECT_EQ(Send(4), 4);
  EXPECT_EQ(Answer({2}).lost, 1);
  EXPECT_EQ(queue_.PeekNext().priority, 0u);  // the lost packet, because the first message is not completely sent
  EXPECT_EQ(Send(), 4);
  Answer();
  Push(1, /*is_lossy=*/true);
  Push(0, /*is_lossy=*/true);
  EXPECT_EQ(Send(8), 8);
  EXPECT_EQ(Answer({6}).lost, 1);
  EXPECT_EQ(queue_.PeekNext().priority, 0u) << "a message of the later priority is not completely sent";
  Answer();
}

TEST_F(PrioritiesTest, AnEarlyMessageIsSentAgainWhileLossyPacketsOfALaterPriorityAreInFlight) {
  Push(1, /*is_lossy=*/true);
  Send();
  Push(0, /*is_lossy=*/true);
  Send();
  EXPECT_EQ(Answer({2, 4, 5, 6, 7}).lost, 1);
  EXPECT_EQ(Send(), 1);
  Answer();
  Push(0, /*is_lossy=*/true);
  Send();
  EXPECT_EQ(Answer({2}).lost, 1);
  EXPECT_FALSE(queue_.has_next());
}

TEST_F(PrioritiesTest, AProbeOfItsPriorityReportsALossyMessageWhileLaterPrioritiesWait) {
  Push(0, /*is_lossy=*/true);
  Send(4);
  Push(1);
  EXPECT_FALSE(queue_.OwedProbe());
  EXPECT_EQ(Answer({2}).lost, 1);
  ASSERT_EQ(queue_.OwedProbe(), 0u);
  EXPECT_EQ(Next().sent, 1);
  EXPECT_EQ(queue_.Probe(1, /*path=*/0, /*priority=*/0).sent, 1);
  EXPECT_FALSE(queue_.OwedProbe());
  Send();
  EXPECT_TRUE(queue_.ends_message());
}

TEST_F(PrioritiesTest, AnAcknowledgementOfOvertakenPacketsIsMeasured) {
  Push(1);
  Send(2);
  Push(0);
  Send(4);
  EXPECT_EQ(Answer({4, 5}).packets, 4);
  const Answered answered = Answer();  // the newest packet was acknowledged before
  EXPECT_EQ(answered.packets, 2);
  EXPECT_GT(answered.sent, 0);
}

TEST_F(PrioritiesTest, ACopiedFrameOfAnEarlierPriorityLeavesAProbeDue) {
  Push(1);
  Send();
  queue_.PushCopy({FrameType::kMessage, 0, MessageId()}, {}, 0);
  Send();
  EXPECT_TRUE(queue_.ends_message());
  queue_.PushCopy({FrameType::kMessage, 0, MessageId()}, {}, 1);
  Send();
  EXPECT_FALSE(queue_.ends_message());
}

TEST_F(PrioritiesTest, PacketsThatTooManyHaveOvertakenAreLost) {
  Push(1);
  Send(1);
  for (int i = 0; i < 300; ++i) Push(0);
  for (int sent = 0; sent < 1200; sent += 300) {
    EXPECT_EQ(Send(300), 300);
    const Answered answered =
        Answer(sent < 900 ? std::vector<size_t>{static_cast<size_t>(sent) + 300} : std::vector<size_t>());
    EXPECT_EQ(answered.lost, sent == 600 ? 1 : 0);
  }
  EXPECT_GT(Send(), 0);
  Answer();
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace jaxcomm

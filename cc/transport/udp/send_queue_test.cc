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
  void Probe() { newest_ = queue_.Probe(++now_).number; }
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
  EXPECT_EQ(queue_.Probe(1, /*path=*/0).number, 3u);
  Answer(/*path=*/1, /*newest=*/2);
  EXPECT_EQ(done_, 1u);
}

TEST_F(SendQueuePathsTest, ALossyMessageIsNotSentWhileAnotherPathCarriesItsBytes) {
  PushLossy(4 * kFragment - LossyFrontBytes(1));
  for (const size_t path : {0, 0, 1, 1}) EXPECT_EQ(Next(path)->sent, 0);
  EXPECT_EQ(queue_.Probe(1, /*path=*/0).sent, 0);  // packets of path 1 may be late
  EXPECT_EQ(queue_.Probe(1, /*path=*/1).sent, 0);
  Answer(/*path=*/1, /*newest=*/2, /*lost=*/{0});
  EXPECT_EQ(done_, 0u);
  EXPECT_EQ(queue_.Probe(1, /*path=*/0).sent, 1);  // later than the packets that are still in flight, on its own path
  EXPECT_FALSE(queue_.owes_probe());
  Answer(/*path=*/0, /*newest=*/3);
  EXPECT_EQ(done_, 1u);
  EXPECT_TRUE(queue_.owes_probe());
  EXPECT_EQ(queue_.Probe(1, /*path=*/1).sent, 1);
  EXPECT_FALSE(queue_.owes_probe());
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

// A queue with two priorities, each with two paths.
class PrioritiesTest : public testing::Test {
 protected:
  // Queues a message of four packets. The four packets have the frame number that the queue gives the message when its
  // first packet is sent.
  void Push(size_t priority, bool is_lossy = false) {
    constexpr uint32_t kBytes = 4 * kFragment - kHeaderBytes;
    const std::vector<ConstSpan> spans = {{data_.data(), kBytes, 0}};
    const auto message = std::make_shared<Outgoing>(Outgoing{CallId(), spans, 1, Status(), nullptr});
    if (is_lossy) {
      queue_.PushLossy(MessageId(), {false}, LossLimit(kBytes), message, priority);
    } else {
      queue_.Push({FrameType::kMessage, kBytes, MessageId()}, message, priority);
    }
  }
  std::optional<PacketHeader> Next(size_t path) {
    std::array<std::byte, kFragment> bytes;
    size_t size;
    return queue_.Next(++now_, bytes.data(), &size, path);
  }

  SendQueue queue_{kFragment, /*window=*/1 << 20, /*paths=*/2, /*priorities=*/2};
  std::vector<std::shared_ptr<Outgoing>> done_;

 private:
  const std::array<std::byte, 8 * kFragment> data_ = {};
  int64_t now_ = 0;
};

TEST_F(PrioritiesTest, TheFirstPriorityIsNextAlthoughAnotherMessageIsPartlySent) {
  Push(1);
  EXPECT_EQ(queue_.NextPriority(), 1u);
  EXPECT_TRUE(Next(2));
  Push(0);
  EXPECT_EQ(queue_.NextPriority(), 0u);
  EXPECT_TRUE(Next(0) && Next(1) && Next(0) && Next(1));
  EXPECT_EQ(queue_.NextPriority(), 1u);
  EXPECT_EQ(queue_.waiting_bytes(0), 0);
  EXPECT_GT(queue_.waiting_bytes(1), 0);
}

TEST_F(PrioritiesTest, APathCarriesPacketsOfItsPriorityOnly) {
  Push(1);
  EXPECT_FALSE(Next(0) || Next(1));
  EXPECT_TRUE(Next(2) && Next(3));
  queue_.GiveUp(3, &done_);  // the other path of the priority retransmits the packet
  EXPECT_FALSE(Next(0) || Next(1));
  EXPECT_TRUE(Next(2) && Next(2) && Next(2));
  EXPECT_FALSE(queue_.has_next());
}

TEST_F(PrioritiesTest, AMessageCountsAsSentOnlyAfterTheEarlierOneOfAnotherPriority) {
  Push(1);
  EXPECT_EQ(Next(2)->frame, 0u);
  Push(0);
  for (int i = 0; i < 4; ++i) {
    const PacketHeader header = *Next(0);
    EXPECT_EQ(header.frame, 1u);
    EXPECT_EQ(header.sent, 0);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Next(2)->sent, i < 2 ? 0 : 2);
}

TEST_F(PrioritiesTest, LossyBytesInFlightOnPathsOfAnotherPriorityDoNotCountAsSent) {
  Push(1, /*is_lossy=*/true);
  while (Next(2)) continue;
  Push(0);
  PacketHeader header;
  while (const auto next = Next(0)) header = *next;
  EXPECT_EQ(header.sent, 0);
  queue_.GiveUp(2, &done_);
  EXPECT_TRUE(queue_.has_next(2));  // the first packet holds the frame's front, and must arrive
  while (Next(3)) continue;
  EXPECT_FALSE(queue_.owes_probe());
}

TEST_F(PrioritiesTest, EachPriorityEndsItsOwnMessages) {
  Push(0);
  Push(1);
  while (Next(0)) continue;
  EXPECT_TRUE(queue_.ends_message(0));
  EXPECT_TRUE(Next(2));
  EXPECT_FALSE(queue_.ends_message(2));
  EXPECT_EQ(queue_.Clear().size(), 2u);
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace jaxcomm

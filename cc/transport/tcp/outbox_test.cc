#include "cc/transport/tcp/outbox.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

MessageId Id(uint32_t call, uint32_t index) { return {{1, call, 0, 0}, 0, 1, index, 0}; }

class OutboxTest : public testing::Test {
 protected:
  // Pushes a message whose spans are in `bytes`, so that a test can change the bytes later.
  std::shared_ptr<Outgoing> Push(const MessageId& id, Bytes& bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    auto message = std::make_shared<Outgoing>(
        Outgoing{id.call, {{bytes.data(), size / 2, 0}, {bytes.data() + size / 2, size - size / 2, size}}, 1, {}, {}});
    outbox_.Push(Of(id, bytes), message);
    return message;
  }

  static Header Of(const MessageId& id, const Bytes& bytes) {
    return {FrameType::kMessage, static_cast<uint32_t>(bytes.size()), id};
  }

  static void Expect(Bytes* stream, const MessageId& id, const Bytes& bytes) {
    stream->resize(stream->size() + kHeaderBytes);
    EncodeHeader(Of(id, bytes), stream->data() + stream->size() - kHeaderBytes);
    stream->insert(stream->end(), bytes.begin(), bytes.end());
  }

  // Drains at most `limit` bytes from the outbox, as if a kernel accepted `step` bytes at a time.
  void Drain(size_t step, size_t limit = SIZE_MAX) {
    while (!outbox_.empty() && limit > 0) {
      iovec vectors[Outbox::kMaxVectors];
      size_t bytes, taken = 0;
      const size_t count = outbox_.Gather(vectors, &bytes);
      for (size_t i = 0; i < count; ++i) {
        const auto* data = static_cast<const std::byte*>(vectors[i].iov_base);
        const size_t size = std::min({vectors[i].iov_len, step - taken, limit});
        drained_.insert(drained_.end(), data, data + size);
        taken += size;
        limit -= size;
      }
      outbox_.Advance(taken, &left_);
    }
  }

  Outbox outbox_;
  Bytes drained_;
  std::vector<std::shared_ptr<Outgoing>> left_;
};

TEST_F(OutboxTest, HoweverMuchTheKernelTakes) {
  for (const size_t step : {size_t{1}, size_t{43}, size_t{100}, size_t{1000000}}) {
    Bytes a(100, std::byte{1}), b(1, std::byte{2}), none, expected;
    drained_.clear();
    left_.clear();
    const auto first = Push(Id(1, 0), a);
    outbox_.PushCopy(Of(Id(1, 1), b), {{b.data(), 1, 0}});
    const auto last = Push(Id(1, 2), none);
    Drain(step);
    for (const auto& [index, bytes] : {std::pair(0u, a), {1u, b}, {2u, none}}) Expect(&expected, Id(1, index), bytes);
    EXPECT_EQ(drained_, expected) << step;
    EXPECT_EQ(left_, (std::vector{first, last})) << step;
    EXPECT_EQ(outbox_.copied_bytes(), 0u);
  }
}

TEST_F(OutboxTest, ACancelledMessageIsFinishedFromACopyOrNeverBegun) {
  for (const size_t sent : {size_t{1}, kHeaderBytes, kHeaderBytes + 30, kHeaderBytes + 99}) {
    Bytes a(100, std::byte{1}), b(50, std::byte{2}), c(20, std::byte{3}), expected;
    const Bytes original = a;
    drained_.clear();
    left_.clear();
    Push(Id(1, 0), a);
    Push(Id(1, 1), b);
    const auto other = Push(Id(2, 0), c);
    outbox_.PushCopy(Of(Id(1, 2), b), {{b.data(), 50, 0}});
    Drain(/*step=*/1, sent);
    outbox_.Cancel(Id(1, 0).call);
    a.assign(100, std::byte{9});
    Drain(1000);
    Expect(&expected, Id(1, 0), original);
    Expect(&expected, Id(2, 0), c);
    EXPECT_EQ(drained_, expected) << sent;
    EXPECT_EQ(left_, std::vector{other}) << sent;
    EXPECT_EQ(outbox_.copied_bytes(), 0u);
  }
}

TEST_F(OutboxTest, ClearReturnsTheUnsentMessages) {
  Bytes a(10);
  const auto message = Push(Id(1, 0), a);
  outbox_.PushCopy(Of(Id(1, 1), a), {{a.data(), 10, 0}});
  EXPECT_EQ(outbox_.Clear(), std::vector{message});
  EXPECT_TRUE(outbox_.empty());
}

}  // namespace
}  // namespace jaxcomm

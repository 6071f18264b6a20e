// Tests that no byte of a cancelled call is stored in the caller's memory or sent from it.
#include <utility>

#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(CancelTest, AfterCancelNoByteIsStored) {
  Node a(0);
  Raw raw(a, 1);
  const size_t half = Transport::kMaxMessage / 2;
  Bytes into(2 * half);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  raw.Send({FrameType::kMessage, static_cast<uint32_t>(2 * half), Id(1, 1, 0, 0)}, Pattern(half, 1));
  a.transport->Cancel(Id(1, 1, 0, 0).call);
  const Bytes then = into;
  into = then;  // a sanitizer reports a race if the transport still uses the memory
  raw.Send(Pattern(half, 2));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 1)}, Bytes(10, std::byte{1}));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 2)}, Bytes(10, std::byte{1}));
  a.transport->Post(1, Id(1, 1, 0, 2), All(into), false, a.OnReceived());
  raw.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(1, 1);
  EXPECT_EQ(into, then);
  EXPECT_EQ(a.received + a.failed, 0);
}

TEST(CancelTest, AfterCancelNoByteIsSentFromTheCaller) {
  Node a(0);
  Raw raw(a, 1);
  constexpr uint32_t kMessages = 50;  // more messages than the kernel accepts
  Bytes data = Pattern(Transport::kMaxMessage, 1);
  const Bytes original = data;
  for (uint32_t i = 0; i < kMessages; ++i) {
    a.transport->Send({{1, Id(1, 0, 1, i)}}, All(std::as_const(data)), a.OnSent());
  }
  a.transport->Flush();
  a.transport->Cancel(Id(1, 0, 0, 0).call);
  data.assign(data.size(), std::byte{9});
  a.transport->Notify(1, "next");
  a.transport->Flush();
  for (uint32_t i = 0;; ++i) {
    const Result<Header> header = DecodeHeader(raw.Read(kHeaderBytes).data());
    ASSERT_TRUE(header.ok());
    ASSERT_LT(i, kMessages);
    if (header.value().type == FrameType::kNotice) break;
    EXPECT_EQ(header.value().id.index, i);
    EXPECT_TRUE(Same(raw.Read(header.value().bytes), original));
  }
}

}  // namespace
}  // namespace jaxcomm

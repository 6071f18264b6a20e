// Tests that the callers' memory is neither written nor read after their calls are cancelled.
#include <utility>

#include "cc/transport/testing/traffic.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(UdpCancelTest, AfterCancelNoByteIsStored) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes into(3 * kFragment - kHeaderBytes);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  raw.SendFirstOfThree(Id(1, 1, 0, 0));
  raw.SendNotice(0);
  a.AwaitNotices(1, 1);
  EXPECT_EQ(into[0], std::byte{1});
  a.transport->Cancel(Id(1, 1, 0, 0).call);
  const Bytes then = into;
  into = then;  // a sanitizer reports a race if the transport still uses the memory
  raw.SendOthersOfThree();
  raw.SendBytes(raw.Seal(PacketKind::kMessage, 1, {FrameType::kMessage, 10, Id(1, 1, 0, 1)}, Bytes(10)));
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  raw.SendNotice(1);
  a.AwaitNotices(1, 2);
  EXPECT_EQ(into, then);
  EXPECT_EQ(a.received + a.failed, 0);
}

TEST(UdpCancelTest, AfterCancelNoByteIsSentFromTheCaller) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes data = Pattern(Transport::kMaxMessage, 1);
  const Bytes original = data;
  constexpr uint32_t kMessages = 12;
  for (uint32_t i = 0; i < kMessages; ++i) {
    a.transport->Send({{1, Id(1, 0, 1, i)}}, All(std::as_const(data)), a.OnSent());
  }
  a.transport->Flush();  // sends only some of the messages, because no packet is acknowledged
  a.transport->Cancel(Id(1, 0, 0, 0).call);
  data.assign(data.size(), std::byte{9});
  a.transport->Notify(1, "next");
  a.transport->Flush();
  for (;;) {
    const auto [header, packet] = raw.Read();
    if (header.kind == PacketKind::kProbe) break;
    if (header.kind == PacketKind::kOrdered) continue;  // the notice
    ASSERT_EQ(header.kind, PacketKind::kMessage);
    ASSERT_LT(header.frame, kMessages - 1);
    ASSERT_TRUE(IsPartOf(original, header, packet));
  }
  EXPECT_EQ(a.sent + a.failed, 0);
}

TEST(UdpCancelTest, CancelsInTheMidstOfTrafficOverABadLine) {
  BadLine line({1, 0.05, 0.05, 0.05});
  UdpNode a(0), b(1);
  Connect(a, b, &line);
  CancelInTraffic(a, b);
}

}  // namespace
}  // namespace jaxcomm

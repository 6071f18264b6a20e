// Calls that are given up: no byte of them is stored or sent any more.
#include <thread>
#include <vector>

#include "cc/transport/testing/traffic.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kFragment = 1400 - kPacketHeaderBytes;

TEST(UdpCancelTest, AfterCancelNoByteIsStored) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes into(3 * kFragment - kHeaderBytes);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  Bytes first(kFragment, std::byte{1});
  EncodeHeader({FrameType::kMessage, static_cast<uint32_t>(into.size()), Id(1, 1, 0, 0)}, first.data());
  raw.SendBytes(raw.Seal(PacketKind::kMessage, 0, 0, 3 * kFragment, first));
  raw.SendBytes(raw.Seal(PacketKind::kOrdered, 0, {FrameType::kNotice, 0, {}}));
  a.AwaitNotices(1, 1);
  EXPECT_EQ(into[0], std::byte{1});
  a.transport->Cancel(Id(1, 1, 0, 0).call);
  const Bytes then = into;
  into = then;  // a race, to a sanitizer, if the memory were still somebody's
  for (const uint32_t fragment : {2u, 1u}) {
    raw.SendBytes(
        raw.Seal(PacketKind::kMessage, 0, fragment * kFragment, 3 * kFragment, Bytes(kFragment, std::byte{2})));
  }
  raw.SendBytes(raw.Seal(PacketKind::kMessage, 1, {FrameType::kMessage, 10, Id(1, 1, 0, 1)}, Bytes(10)));
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  raw.SendBytes(raw.Seal(PacketKind::kOrdered, 1, {FrameType::kNotice, 0, {}}));
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
  a.transport->Flush();  // some of them, as nobody answers
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
    const size_t own = header.offset == 0 ? kHeaderBytes : 0;
    const Bytes part(packet.begin() + kPacketHeaderBytes + static_cast<ptrdiff_t>(own), packet.end());
    const size_t at = header.offset + own - kHeaderBytes;
    ASSERT_TRUE(Same(part, {original.begin() + static_cast<ptrdiff_t>(at),
                            original.begin() + static_cast<ptrdiff_t>(at + part.size())}));
  }
  EXPECT_EQ(a.sent + a.failed, 0);
}

TEST(UdpCancelTest, CancelsInTheMidstOfTraffic) {
  for (const double share : {0.0, 0.05}) {
    BadLine line({1, share, share, share});
    UdpNode a(0), b(1);
    Connect(a, b, share > 0 ? &line : nullptr);
    std::thread other([&] { RunAndCancel(b, 0, 2); });
    RunAndCancel(a, 1, 1);
    other.join();
  }
}

}  // namespace
}  // namespace jaxcomm

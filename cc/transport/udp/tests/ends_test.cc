// Tests with processes that leave, die, are silent, or break the protocol.
#include <chrono>
#include <string>
#include <thread>

#include "cc/transport/testing/traffic.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(UdpEndsTest, ALeavingProcessDeliversItsMessagesOverABadLine) {
  BadLine line({1, 0.2, 0, 0.2});
  LeaveBehindAMessage<UdpNode>([&line](UdpNode& a, UdpNode& b) { Connect(a, b, &line); });
}

TEST(UdpEndsTest, AProcessThatDiesFailsItsMessages) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes into(100);
  const Bytes data(Transport::kMaxMessage), part(50);
  // Process 1 has sent a whole message. A message to process 1 is never acknowledged.
  const Bytes half = raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 50, Id(1, 1, 0, 0)}, part);
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  a.transport->Flush();
  raw.SendBytes(half);
  raw.Close();
  EXPECT_EQ(a.AwaitGone(1).find("process 1 is gone: connection "), 0u);
  a.Await([&] { return a.failed == 2; });
  Bytes early(50);
  a.transport->Post(1, Id(1, 1, 0, 0), All(early), false, a.OnReceived());
  a.Await([&] { return a.received + a.failed == 3; });
  EXPECT_EQ(a.received, 1);  // the whole message had arrived
}

TEST(UdpEndsTest, ALastAnswerIsRepeatedOnce) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  for (uint64_t frame = 0; frame < 2; ++frame) {
    raw.SendBytes(raw.Seal(PacketKind::kOrdered, frame, {FrameType::kNotice, 4, MessageId()}, Bytes(4)));
    raw.ReadAnswer();
    raw.ReadAnswer();
    EXPECT_FALSE(raw.ComesWithin(std::chrono::milliseconds(20)));
  }
}

TEST(UdpEndsTest, AProcessThatAnswersNothingStaysAndIsAskedAgain) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  const auto [first, packet] = raw.Read();
  EXPECT_EQ(first.kind, PacketKind::kOrdered);
  for (int i = 0; i < 10; ++i) {
    const auto [header, probe] = raw.Read();
    EXPECT_EQ(header.kind, PacketKind::kProbe);
    EXPECT_TRUE(header.asks);
  }
}

TEST(UdpEndsTest, OnlyAProcessThatBreaksTheProtocolIsCutOff) {
  const Header message{FrameType::kMessage, 11, Id(1, 4, 0, 0)};
  Bytes encoded(kHeaderBytes + 11);
  EncodeHeader(message, encoded.data());
  const Bytes ten(10);
  struct Case {
    uint32_t process;
    Bytes (*packet)(RawUdp& raw);
    const char* words;
  } const cases[] = {
      {2, [](RawUdp& raw) { return raw.Seal(PacketKind::kMessage, 0, 0, 100, Bytes(100, std::byte{0x20})); },
       "a frame of the unknown type 0x20202020"},
      {3, [](RawUdp& raw) { return raw.Seal(PacketKind::kMessage, 0, 0, 1 << 30, Bytes(1368)); },
       "a packet with 1368 bytes at offset 0 of a frame of 1073741824 bytes; frames have 44 to 262188"},
      {4,
       [](RawUdp& raw) {
         return raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 11, Id(1, 4, 0, 0)}, Bytes(11));
       },
       "with 11 bytes where 10 are expected"},
      {5,
       [](RawUdp& raw) {
         return raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 10, Id(1, 1, 0, 0)}, Bytes(10));
       },
       "which only process 1 may send"},
      {6, [](RawUdp& raw) { return raw.Seal(PacketKind::kMessage, 0, 1369, 3000, Bytes(1368)); },
       "a packet with 1368 bytes at offset 1369 of a frame of 3000 bytes; its fragments have 1368"},
      {7, [](RawUdp& raw) { return raw.Seal(PacketKind::kMessage, 4096, 0, 100, Bytes(100)); }, "too far ahead"},
      {8,
       [](RawUdp& raw) {
         return raw.Seal(PacketKind::kOrdered, 0, {FrameType::kMessage, 0, Id(1, 8, 0, 0)});
       },
       "a notice frame whose type or size does not match its packets"},
      {9,
       [](RawUdp& raw) {
         return raw.Seal(PacketKind::kMessage, 0, {FrameType::kGoodbye, 0, {}});
       },
       "a message frame whose type or size does not match its packets"},
      {10, [](RawUdp& raw) { return raw.Seal(PacketKind::kProbe, 0, 0, 0, Bytes(1)); }, "as a probe"},
      {11, [](RawUdp& raw) { return raw.Seal(PacketKind::kAnswer, 0, 0, 0, Bytes(kAnswerBytes)); },
       "an answer to packet 0, which was never sent to it"},
      {12, [](RawUdp& raw) { return raw.Seal(PacketKind::kAnswer, 0, 0, 0, Bytes(1)); }, "an answer of 1 bytes"},
  };
  UdpNode a(0), b(1);
  Connect(a, b);
  Bytes into(10);
  a.transport->Post(4, Id(1, 4, 0, 0), All(into), false, a.OnReceived());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(a.last_error, "process 4 is not connected to process 0");
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  for (const Case& each : cases) {
    RawUdp raw(a, each.process);
    if (each.process == 4) a.transport->Post(4, Id(1, 4, 0, 0), All(into), false, a.OnReceived());
    raw.SendBytes(each.packet(raw));
    const std::string why = a.AwaitGone(each.process);
    EXPECT_EQ(why.find("process " + std::to_string(each.process) + " has been cut off: it sent "), 0u) << why;
    EXPECT_NE(why.find(each.words), std::string::npos) << why;
  }
  EXPECT_EQ(into, ten);
  const Bytes data = Pattern(10, 1);
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(data), b.OnSent());
  b.transport->Flush();
  a.Await([&] { return a.received == 1; });
  EXPECT_EQ(into, data);
}

TEST(UdpEndsTest, BytesOverTheConnectionAreAnError) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  ASSERT_EQ(send(raw.connection(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(a.AwaitGone(1),
            "process 1 has been cut off: it sent unexpected bytes over the connection that shows whether it is alive");
}

// The host of a stopped process keeps the kAsk bytes. When the process continues, it replies to all of them at once.
TEST(UdpEndsTest, AProcessThatWasStoppedIsNotGone) {
  constexpr std::chrono::seconds kSilence(2);
  UdpNode a(0, "eth1", kSilence);
  RawUdp raw(a, 1);
  Bytes into(10);
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  std::this_thread::sleep_for(kSilence / 5);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(send(raw.connection(), &kHere, 1, MSG_NOSIGNAL), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // `a` reads the replies
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  raw.SendBytes(raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 10, Id(1, 1, 0, 0)}, Bytes(10)));
  a.Await([&] { return a.received + a.failed == 1; });
  EXPECT_EQ(a.received, 1) << a.last_error;
}

TEST(UdpEndsTest, ForgedAndRepeatedPacketsAreCountedAndDropped) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes into(10);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  const Bytes data = Pattern(10, 1);
  const Bytes good = raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 10, Id(1, 1, 0, 0)}, data);
  Bytes wrong_tag = good, wrong_byte = good, cut(good.begin(), good.end() - 1);
  wrong_tag[24] ^= std::byte{1};
  wrong_byte.back() ^= std::byte{1};
  const Bytes oversize(60000, std::byte{1}), noise(500, std::byte{7}), small(5), empty;
  for (const Bytes& forged : {wrong_tag, wrong_byte, cut, oversize, noise, small, empty}) raw.SendBytes(forged);
  raw.SendBytes(good);
  for (int i = 0; i < 5; ++i) raw.SendBytes(good);
  raw.SendNotice(0);
  a.AwaitNotices(1, 1);
  EXPECT_EQ(a.received, 1);
  EXPECT_EQ(into, data);
  EXPECT_EQ(a.transport->dropped(1).forged, 7);
  EXPECT_EQ(a.transport->dropped(1).repeated, 5);
}

}  // namespace
}  // namespace jaxcomm

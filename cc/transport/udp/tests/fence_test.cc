// Tests of paths that are fenced and then replaced by new paths, as happens in jobs with several rails.
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "cc/transport/testing/recorded_events.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

const Status kSilent(Code::kInternal, "it is silent");

// Sends a notice from the process and waits for its arrival. After this wait, all packets that were sent before the
// notice have also arrived.
void AwaitNotice(UdpNode& node, RawUdp& raw, uint64_t frame, size_t count) {
  raw.SendNotice(frame);
  node.AwaitNotices(1, count);
}

TEST(UdpFenceTest, AfterFenceNoByteIsStoredAndThePathCanBeMadeAnew) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  Bytes into(3 * kFragment - kHeaderBytes);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  raw.SendFirstOfThree(Id(1, 1, 0, 0));
  const Bytes early(10, std::byte{3});
  raw.SendBytes(raw.Seal(PacketKind::kMessage, 1, {FrameType::kMessage, 10, Id(1, 1, 0, 1)}, early));
  AwaitNotice(a, raw, 0, 1);
  EXPECT_EQ(into[0], std::byte{1});
  a.transport->Fence(1, kSilent);
  const Bytes then = into;
  into = then;  // a sanitizer reports a race if the transport still uses the memory
  raw.Close();

  // The transport must have kept nothing of the old messages. The same messages are sent on a new path.
  RawUdp anew(a, 1);
  Bytes memory(10);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  a.transport->Post(1, Id(1, 1, 0, 1), All(memory), false, a.OnReceived());
  anew.SendOthersOfThree();
  AwaitNotice(a, anew, 0, 2);
  EXPECT_EQ(into, then);  // the packet with the message id is missing
  EXPECT_EQ(a.received, 0);
  anew.SendFirstOfThree(Id(1, 1, 0, 0));
  anew.SendBytes(anew.Seal(PacketKind::kMessage, 1, {FrameType::kMessage, 10, Id(1, 1, 0, 1)}, early));
  a.Await([&] { return a.received == 2; });
  EXPECT_EQ(into[0], std::byte{1});
  EXPECT_EQ(into.back(), std::byte{2});
  EXPECT_EQ(memory, early);
  EXPECT_EQ(a.failed, 0);
}

TEST(UdpFenceTest, AfterFenceNoByteIsSentAndNoProcessIsGone) {
  UdpNode a(0);
  {
    RawUdp raw(a, 1);
    Bytes data = Pattern(Transport::kMaxMessage, 1);
    a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(std::as_const(data)), a.OnSent());
    a.transport->Flush();  // sends only a part of the data, because no packet is acknowledged
    a.transport->Fence(1, kSilent);
    data.assign(data.size(), std::byte{9});
    a.Await([&] { return a.failed == 1; });
    EXPECT_EQ(a.last_error, "it is silent");
    const Bytes original = Pattern(Transport::kMaxMessage, 1);
    while (raw.ComesWithin(std::chrono::milliseconds(0))) {
      const auto [header, packet] = raw.Read();
      if (header.kind != PacketKind::kMessage) continue;
      ASSERT_TRUE(IsPartOf(original, header, packet));
    }
    a.transport->Notify(1, "which nobody gets");
    a.transport->Flush();
    EXPECT_EQ(recv(raw.connection(), &data[0], 1, 0), -1);  // the connection has been reset
  }
  RawUdp anew(a, 1);
  a.transport->Notify(1, "next");
  a.transport->Flush();
  EXPECT_EQ(anew.Read().first.frame, 0u);  // frame numbers start again
  anew.Close();
  EXPECT_NE(a.AwaitGone(1), "it is silent");  // this end is the first event, because Fence causes none
}

TEST(UdpFenceTest, PacketsFromBeforeAFenceAreForgedAfterIt) {
  UdpNode a(0);
  Bytes recorded;
  {
    RawUdp raw(a, 1);
    recorded = raw.Seal(PacketKind::kMessage, 0, {FrameType::kMessage, 10, Id(1, 1, 0, 0)}, Bytes(10));
    a.transport->Fence(1, kSilent);
  }
  RawUdp anew(a, 1, /*sends=*/{7, 8, 9});
  Bytes into(10, std::byte{5});
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  anew.SendBytes(recorded);
  AwaitNotice(a, anew, 0, 1);
  EXPECT_EQ(a.transport->dropped(1).forged, 1);
  EXPECT_EQ(a.received, 0);
  EXPECT_EQ(into, Bytes(10, std::byte{5}));
}

TEST(UdpFenceTest, AnswersOfAProcessOrItsHostAreProgress) {
  UdpNode a(0), b(1);
  Connect(a, b);
  const SendProgress at_first = a.transport->ProgressTo(1);
  EXPECT_EQ(at_first.unanswered, 0u);
  a.transport->Notify(1, "here");
  a.transport->Flush();
  b.AwaitNotices(0, 1);
  while (a.transport->ProgressTo(1).confirmed == at_first.confirmed) std::this_thread::yield();
  while (a.transport->ProgressTo(1).unanswered > 0) std::this_thread::yield();

  RawUdp stopped(a, 2);  // a process that is stopped, so that only its host answers
  const uint64_t before = a.transport->ProgressTo(2).confirmed;
  a.transport->Notify(2, "is anybody there");
  a.transport->Flush();
  EXPECT_GE(a.transport->ProgressTo(2).unanswered, 1u);
  while (a.transport->ProgressTo(2).confirmed == before) std::this_thread::yield();
  std::byte asked{0};
  EXPECT_EQ(recv(stopped.connection(), &asked, 1, 0), 1);
  EXPECT_EQ(asked, kAsk);
  EXPECT_GE(a.transport->ProgressTo(2).unanswered, 1u);
  a.transport->Fence(2, kSilent);
  EXPECT_EQ(a.transport->ProgressTo(2).unanswered, 0u);
}

TEST(UdpFenceTest, AHostThatIsAskedAnswersWithoutItsProcess) {
  UdpNode a(0);
  RawUdp raw(a, 1);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(send(raw.connection(), &kAsk, 1, MSG_NOSIGNAL), 1);
  AwaitNotice(a, raw, 0, 1);
  AwaitNotice(a, raw, 1, 2);
  EXPECT_EQ(a.transport->ProgressTo(1).unanswered, 0u);
}

}  // namespace
}  // namespace jaxcomm

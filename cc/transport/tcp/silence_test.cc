// Tests with hosts that fall silent, lose long packets, or answer but do not read.
#include <chrono>
#include <string>
#include <thread>

#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/testing/drop_packets.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr std::chrono::milliseconds kShort(600);
const std::string kSilent = "process 1 is gone: its host has not answered for 0.6 s";

// The host still sends packets, but receives none.
TEST(TcpSilenceTest, AHostThatSendsAndAcknowledgesNothingIsGone) {
  Node a(0, "eth1", kShort);
  Raw raw(a, 1);
  DropPackets(raw.connection());
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  for (int i = 0; i < 20; ++i) {
    raw.Send({FrameType::kNotice, 0, {}});
    std::this_thread::sleep_for(kShort / 10);
  }
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone on rail eth1 to process 0: its host has not answered for 0.6 s");
}

TEST(TcpSilenceTest, AHostThatReadNothingBeforeIsGone) {
  Node a(0, "", kShort);
  Raw raw(a, 1);
  const Bytes data(Transport::kMaxMessage);
  for (uint32_t i = 0; i < 100; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Flush();
  std::this_thread::sleep_for(kShort);  // time to fill the buffers of the peer
  DropPackets(raw.connection());
  EXPECT_EQ(a.AwaitGone(1).find(kSilent), 0u);
}

TEST(TcpSilenceTest, AProcessThatReadsNothingStays) {
  Node a(0, "", kShort);
  Raw raw(a, 1);
  const Bytes data(Transport::kMaxMessage), notice(100);
  for (uint32_t i = 0; i < 100; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Flush();
  std::this_thread::sleep_for(4 * kShort);
  raw.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(1, 1);
}

TEST(TcpSilenceTest, TheErrorNamesTheLossOfLongPackets) {
  Node a(0, "eth1", kShort);
  Raw raw(a, 1);
  DropPackets(raw.connection(), /*longer_than=*/1000);
  const Bytes data(Transport::kMaxMessage);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  a.transport->Notify(1, "which comes, but behind what does not");
  a.transport->Flush();
  const std::string why = a.AwaitGone(1);
  EXPECT_EQ(why.find("process 1 is gone on rail eth1 to process 0: "), 0u) << why;
  EXPECT_NE(why.find(" to 127.0.0.1"), std::string::npos) << why;
  EXPECT_NE(why.find("give the interfaces and switches on the path the same MTU"), std::string::npos) << why;
  raw.AwaitReset();
}

}  // namespace
}  // namespace jaxcomm

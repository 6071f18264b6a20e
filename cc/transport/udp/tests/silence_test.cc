// Tests with hosts that fall silent, and paths that lose long packets or all packets.
#include <chrono>
#include <string>
#include <thread>

#include "cc/transport/testing/drop_packets.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kShort(600);

TEST(UdpSilenceTest, AHostThatAnswersNothingIsGoneThoughItsProgressIsAskedFor) {
  UdpNode a(0, "", kShort);
  RawUdp raw(a, 1);
  DropPackets(raw.connection());
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  for (int i = 0; i < 20; ++i) {  // calls ProgressTo repeatedly, as rails do
    a.transport->ProgressTo(1);
    std::this_thread::sleep_for(kShort / 20);
  }
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: its host has not answered for 0.6 s");
}

TEST(UdpSilenceTest, AProcessStaysIfOnlyItsHostAnswers) {
  UdpNode a(0, "", kShort);
  RawUdp raw(a, 1);
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  std::this_thread::sleep_for(4 * kShort);
  raw.SendNotice(0);
  a.AwaitNotices(1, 1);
}

TEST(UdpSilenceTest, APathOnWhichOnlyTcpPassesEnds) {
  for (const std::string rail : {"", "eth1"}) {
    constexpr std::chrono::seconds kSilence(5);
    UdpNode a(0, rail, kSilence), b(1, rail, kSilence);
    BadLine line({/*seed=*/1, /*lost=*/1, /*doubled=*/0, /*late=*/0});
    Connect(a, b, &line);
    const auto begin = Clock::now();
    a.transport->Notify(1, "which nobody gets");
    a.transport->Flush();
    const std::string why = a.AwaitGone(1);
    EXPECT_GE(Clock::now() - begin, kSilence / (rail.empty() ? 2 : 10));
    EXPECT_EQ(why.find(rail.empty() ? "process 1 is gone: UDP does not pass to 127.0.0.1: no packet has been answered "
                                      "for 2.5 s, while the process answers over TCP"
                                    : "process 1 is gone on rail eth1 to process 0: UDP does not pass to 127.0.0.1: no "
                                      "packet has been answered for 0.5 s, while the process answers over TCP"),
              0u)
        << why;
    EXPECT_NE(b.AwaitGone(0), "");  // TCP shows the end to `b`
  }
}

class LongPacketsTest : public testing::Test {
 protected:
  void Connect() {
    const auto [to_b, to_a] = Paths();
    DropPackets(to_a.sockets[0].socket, /*longer_than=*/1000);
    EXPECT_TRUE(a_.transport->AddPeer(1, to_b).ok());
    EXPECT_TRUE(b_.transport->AddPeer(0, to_a).ok());
  }

  UdpNode a_{0, "eth1", kShort}, b_{1, "eth1", kShort};
};

TEST_F(LongPacketsTest, TheirLossEndsThePathThoughShorterOnesCome) {
  Connect();
  const Bytes data(100000);
  a_.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a_.OnSent());
  for (int i = 0; i < 20; ++i) {
    a_.transport->Notify(1, "which comes");
    a_.transport->Flush();
    std::this_thread::sleep_for(kShort / 20);
  }
  EXPECT_EQ(a_.AwaitGone(1).find("process 1 is gone on rail eth1 to process 0: for 0.6 s no packet of 1400 bytes has "
                                 "reached 127.0.0.1, while smaller ones have; give the interfaces and switches on the "
                                 "path the same MTU"),
            0u)
      << a_.AwaitGone(1);
}

TEST_F(LongPacketsTest, TheirLossStopsTheProgressOfARail) {
  Connect();
  const Bytes data(100000);
  a_.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a_.OnSent());
  a_.transport->Flush();
  SendProgress last = a_.transport->ProgressTo(1);
  const auto is_stuck = [&] {  // returns whether nothing progresses for 0.3 s, the limit of a silent rail
    for (int i = 0; i < 15; ++i) {
      a_.transport->Notify(1, "which comes");
      a_.transport->Flush();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const SendProgress now = a_.transport->ProgressTo(1);
      const bool progresses = now.confirmed != std::exchange(last, now).confirmed || now.unanswered == 0;
      if (progresses) return false;
    }
    return true;
  };
  const auto limit = Clock::now() + std::chrono::seconds(20);
  bool found = false;
  while (!found && Clock::now() < limit) found = is_stuck();
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace jaxcomm

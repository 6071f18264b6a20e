#include "cc/testbed/packet_switch.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "cc/testbed/testing/frames.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr double kRate = 1e9;  // bytes per second: one byte per nanosecond
constexpr int64_t kSize = 1000;

// Hosts with the addresses 1, 2, …, the frames that they will send, and the frames that they received.
class Hosts : public PacketSwitch::Taps {
 public:
  explicit Hosts(size_t count) : sent(count), received(count) {}

  bool Read(size_t port, Frame* frame) override {
    if (sent[port].empty()) return false;
    *frame = std::move(sent[port].front());
    sent[port].pop_front();
    return true;
  }
  void Write(size_t port, const Frame& frame) override { received[port].push_back(frame); }

  void Send(size_t from, size_t to, int count, size_t priority = 0, bool important = kOrdinary) {
    for (int i = 0; i < count; ++i) sent[from].push_back(FrameOf(kSize, priority, important, to + 1));
  }
  std::vector<PacketSwitch::Port> Ports(double loss = 0) const {
    std::vector<PacketSwitch::Port> ports;
    for (size_t i = 0; i < sent.size(); ++i) ports.push_back({i + 1, {kRate, loss}});
    return ports;
  }

  std::vector<std::deque<Frame>> sent;
  std::vector<std::vector<Frame>> received;
};

TEST(PacketSwitchTest, AFrameTakesItsTimeOnBothLinks) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(1 << 20, 1 << 20), &hosts);
  hosts.Send(0, 1, 1);
  EXPECT_EQ(packet_switch.Run(50, 60), 50 + kSize);
  EXPECT_TRUE(packet_switch.IsReceiving(0));
  EXPECT_EQ(packet_switch.Run(60, 50 + kSize), 50 + 2 * kSize);
  EXPECT_FALSE(packet_switch.IsReceiving(0));
  EXPECT_TRUE(hosts.received[1].empty());
  EXPECT_EQ(packet_switch.Run(60 + kSize, 50 + 2 * kSize), kNever);
  ASSERT_EQ(hosts.received[1].size(), 1u);
  EXPECT_EQ(hosts.received[1][0].bytes, FrameOf(kSize, 0, kOrdinary, 2).bytes);
}

TEST(PacketSwitchTest, ABurstOfOneHostComesAsFastAsItsLink) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(2 * kSize, 2 * kSize), &hosts);
  hosts.Send(0, 1, 40);
  EXPECT_EQ(packet_switch.Run(0, 10 * kSize), 11 * kSize);
  EXPECT_EQ(hosts.received[1].size(), 9u);
  EXPECT_EQ(packet_switch.Run(10 * kSize, 1000 * kSize), kNever);
  EXPECT_EQ(hosts.received[1].size(), 40u);  // a port with room for two frames dropped no frame
  EXPECT_EQ(packet_switch.queue(1).counts(0).delays.Longest(), 0);
}

TEST(PacketSwitchTest, WhoLooksLateDropsNothing) {
  std::vector<int64_t> drops;
  for (const int64_t late : {kSize, 30 * kSize, 1000 * kSize}) {
    Hosts hosts(3);
    PacketSwitch packet_switch(hosts.Ports(), Limits(20 * kSize, 10 * kSize), &hosts);
    for (const size_t from : {0, 1}) hosts.Send(from, 2, 30);
    for (int64_t now = 0; now < 1000 * kSize; now += late) packet_switch.Run(now, now + late);
    EXPECT_EQ(packet_switch.queue(2).counts(0).delays.Longest(), 9 * kSize);
    drops.push_back(packet_switch.queue(2).counts(0).ordinary_drops);
    EXPECT_EQ(hosts.received[2].size(), 60u - static_cast<size_t>(drops.back()));
  }
  EXPECT_GT(drops[0], 10);  // two links send to one link
  EXPECT_EQ(drops, std::vector<int64_t>(3, drops[0]));
}

TEST(PacketSwitchTest, ItDoesALimitedWorkAtOnce) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(1 << 20, 1 << 20), &hosts);
  hosts.Send(0, 1, 10000);
  int64_t next = 0;
  int calls = 0;
  for (; next != kNever; ++calls) next = packet_switch.Run(next, 20000 * kSize);
  EXPECT_GT(calls, 50);
  EXPECT_EQ(hosts.received[1].size(), 10000u);
}

TEST(PacketSwitchTest, OrdinaryFramesOfManyToOneAreDroppedFirst) {
  Hosts hosts(4);
  PacketSwitch packet_switch(hosts.Ports(), Limits(20 * kSize, 5 * kSize), &hosts);
  for (const size_t from : {0, 1, 2}) {
    for (int i = 0; i < 6; ++i) {
      hosts.Send(from, 3, 1, 0, kOrdinary);
      hosts.Send(from, 3, 1, 0, kImportant);
    }
  }
  packet_switch.Run(0, 1000 * kSize);
  const OutputQueue::Counts& counts = packet_switch.queue(3).counts(0);
  EXPECT_EQ(counts.important_drops, 0);
  EXPECT_GT(counts.ordinary_drops, 5);
  EXPECT_EQ(counts.packets + counts.ordinary_drops, 36);
}

TEST(PacketSwitchTest, LinksLoseFramesAtRandomEachWay) {
  Hosts hosts(2);
  std::vector<PacketSwitch::Port> ports = hosts.Ports();
  ports[1].link.loss = 0.1;
  PacketSwitch packet_switch(ports, Limits(1 << 20, 1 << 20), &hosts);
  hosts.Send(0, 1, 10000);
  hosts.Send(1, 0, 10000);
  for (int64_t next = 0; next != kNever;) next = packet_switch.Run(next, 100000 * kSize);
  for (const size_t host : {0, 1}) EXPECT_NEAR(static_cast<double>(hosts.received[host].size()), 9000, 300);
  EXPECT_EQ(packet_switch.random_losses(0), 0);
  EXPECT_EQ(static_cast<size_t>(packet_switch.random_losses(1)),
            20000 - hosts.received[0].size() - hosts.received[1].size());
}

TEST(PacketSwitchTest, ALinkThatIsSetHasItsNewRateAndLoss) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(1 << 20, 1 << 20), &hosts);
  packet_switch.SetLink(0, {kRate / 4, 0}, 0);
  hosts.Send(0, 1, 1);
  EXPECT_EQ(packet_switch.Run(0, 0), 4 * kSize);
  packet_switch.SetLink(1, {kRate, 1}, 0);
  EXPECT_EQ(packet_switch.Run(0, 100 * kSize), kNever);
  EXPECT_TRUE(hosts.received[1].empty());
  EXPECT_EQ(packet_switch.random_losses(1), 1);
}

TEST(PacketSwitchTest, FramesOnALinkThatIsRepairedNeedNoLonger) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(1 << 20, 1 << 20), &hosts);
  for (const size_t port : {0, 1}) packet_switch.SetLink(port, {kRate / 1e6, 0}, 0);
  hosts.Send(0, 1, 2);
  packet_switch.Run(0, 10);
  packet_switch.SetLink(0, {kRate, 0}, 100);
  EXPECT_EQ(packet_switch.Run(10, 100), 100 + kSize);
  EXPECT_EQ(packet_switch.Run(100, 10000), 100 + kSize + 1000000 * kSize);
  packet_switch.SetLink(1, {kRate, 0}, 10000);
  EXPECT_EQ(packet_switch.Run(10000, 10000), 10000 + kSize);
  packet_switch.SetLink(1, {kRate / 2, 0}, 10001);
  EXPECT_EQ(packet_switch.Run(10001, 10000 + kSize), 10000 + 3 * kSize);
}

TEST(PacketSwitchTest, FramesWithoutReceiverAreDropped) {
  Hosts hosts(2);
  PacketSwitch packet_switch(hosts.Ports(), Limits(1 << 20, 1 << 20), &hosts);
  hosts.Send(0, 7, 1);                                    // to a host that does not exist
  hosts.Send(0, 0, 1);                                    // to the sender itself
  hosts.sent[0].push_back({std::vector<std::byte>(3)});   // no header
  hosts.sent[0].push_back({std::vector<std::byte>(14)});  // a header without a packet
  Frame arp{std::vector<std::byte>(42)};
  arp.bytes[5] = std::byte{2};
  hosts.sent[0].push_back(arp);
  EXPECT_EQ(packet_switch.Run(0, 100 * kSize), kNever);
  EXPECT_TRUE(hosts.received[0].empty());
  EXPECT_EQ(hosts.received[1].size(), 1u);  // the ARP frame: without IP it is ordinary and of the lowest priority
  EXPECT_EQ(packet_switch.queue(1).counts(0).packets, 1);
}

// Hosts 0 and 1 on one leaf, hosts 2 and 3 on another, connected by spines.
class FabricTest : public testing::Test {
 protected:
  std::vector<PacketSwitch::Port> Ports() const {
    std::vector<PacketSwitch::Port> ports = hosts_.Ports();
    for (size_t i = 0; i < ports.size(); ++i) ports[i].leaf = i / 2;
    return ports;
  }
  void Send(size_t from, size_t to, uint16_t flow, int count = 1) {
    for (int i = 0; i < count; ++i) hosts_.sent[from].push_back(FrameOfFlow(kSize, flow, to + 1));
  }
  // Returns the spine of a flow to host 2.
  static size_t SpineOf(uint16_t flow, size_t spines) { return FrameOfFlow(kSize, flow, 3).flow() % spines; }
  // Returns a flow to host 2 that crosses the spine.
  static uint16_t FlowOver(size_t spine, size_t spines) {
    uint16_t flow = 1;
    while (SpineOf(flow, spines) != spine) ++flow;
    return flow;
  }

  Hosts hosts_{4};
  const QueueLimits limits_ = Limits(1 << 20, 1 << 20);
};

TEST_F(FabricTest, OnlyFramesToAnotherLeafCrossASpine) {
  PacketSwitch fabric(Ports(), limits_, &hosts_, {{kRate, 0}, {kRate, 0}});
  Send(0, 1, 1);
  Send(0, 2, 1);
  fabric.Run(0, 2 * kSize);
  EXPECT_EQ(hosts_.received[1].size(), 1u);
  EXPECT_EQ(fabric.Run(2 * kSize, 5 * kSize - 1), 5 * kSize);  // waits for the first frame, then crosses 4 links
  EXPECT_TRUE(hosts_.received[2].empty());
  EXPECT_EQ(fabric.Run(5 * kSize, 5 * kSize), kNever);
  EXPECT_EQ(hosts_.received[2].size(), 1u);
  EXPECT_EQ(fabric.spine_counts(0).packets + fabric.spine_counts(1).packets, 1);
}

TEST_F(FabricTest, FlowsSpreadAndEachKeepsItsSpine) {
  PacketSwitch fabric(Ports(), limits_, &hosts_, std::vector<PacketSwitch::Link>(4, {kRate, 0}));
  std::vector<int64_t> expected(4);
  for (uint16_t flow = 0; flow < 400; ++flow) {
    Send(0, 2, flow, 3);
    expected[SpineOf(flow, 4)] += 3;
  }
  for (int64_t next = 0; next != kNever;) next = fabric.Run(next, 1 << 30);
  EXPECT_EQ(hosts_.received[2].size(), 1200u);
  for (size_t spine = 0; spine < 4; ++spine) {
    EXPECT_EQ(fabric.spine_counts(spine).packets, expected[spine]);
    EXPECT_NEAR(static_cast<double>(expected[spine]), 300, 100);
  }
}

TEST_F(FabricTest, ASpineHasItsRateInEachDirection) {
  PacketSwitch fabric(Ports(), limits_, &hosts_, {{kRate, 0}, {kRate / 4, 0}});
  Send(0, 2, FlowOver(1, 2), 10);
  EXPECT_EQ(fabric.Run(0, 46 * kSize - 1), 46 * kSize);  // host's link 1, to the spine 10 * 4, from the spine 4, host 1
  EXPECT_EQ(hosts_.received[2].size(), 9u);
}

TEST_F(FabricTest, ASpineThatFailsLosesItsFramesUntilItIsRepaired) {
  PacketSwitch fabric(Ports(), limits_, &hosts_, {{kRate, 0}, {kRate, 0}});
  fabric.SetSpine(1, {kRate, 1}, 0);
  Send(0, 2, FlowOver(0, 2), 5);
  Send(0, 2, FlowOver(1, 2), 5);
  EXPECT_EQ(fabric.Run(0, 100 * kSize), kNever);
  EXPECT_EQ(hosts_.received[2].size(), 5u);
  EXPECT_EQ(fabric.spine_counts(1).random_losses, 5);
  fabric.SetSpine(1, {kRate, 0}, 100 * kSize);
  Send(0, 2, FlowOver(1, 2), 5);
  EXPECT_EQ(fabric.Run(100 * kSize, 200 * kSize), kNever);
  EXPECT_EQ(hosts_.received[2].size(), 10u);
}

TEST_F(FabricTest, SlowSpinesDropWhatTheirBuffersCannotHold) {
  PacketSwitch fabric(Ports(), Limits(10 * kSize, 10 * kSize), &hosts_, {{kRate, 0}, {kRate / 1000, 0}});
  Send(0, 2, FlowOver(1, 2), 50);
  fabric.Run(0, 100 * kSize);
  EXPECT_EQ(fabric.spine_counts(1).drops, 40);
  fabric.SetSpine(1, {kRate, 0}, 100 * kSize);
  EXPECT_EQ(fabric.Run(100 * kSize, 200 * kSize), kNever);
  EXPECT_EQ(hosts_.received[2].size(), 10u);
}

TEST(FrameTest, FlowsAreByAddressesProtocolAndPorts) {
  const Frame first = FrameOfFlow(60, 1, 1);
  EXPECT_EQ(first.flow(), FrameOfFlow(70, 1, 9).flow());  // the size and the MAC address do not matter
  for (const size_t byte : {23u, 26u, 33u, 34u, 37u}) {
    Frame other = first;
    other.bytes[byte] ^= static_cast<std::byte>(byte == 23 ? 17 ^ 6 : 1);
    EXPECT_NE(other.flow(), first.flow()) << byte;
  }
  Frame fragment = first, later = first;
  fragment.bytes[21] = later.bytes[21] = std::byte{8};
  later.bytes[34] = std::byte{7};  // not a port
  EXPECT_EQ(fragment.flow(), later.flow());
  EXPECT_EQ(Frame{std::vector<std::byte>(60)}.flow(), 0u);
}

TEST(FrameTest, PriorityAndImportanceAreReadInBothVersionsOfIp) {
  EXPECT_EQ(FrameOf(60, 5, kImportant).priority(), 5u);
  EXPECT_TRUE(FrameOf(60, 5, kImportant).important());
  EXPECT_FALSE(FrameOf(60, 5, kOrdinary).important());
  Frame frame{std::vector<std::byte>(60)};
  frame.bytes[12] = std::byte{0x86};
  frame.bytes[13] = std::byte{0xdd};
  frame.bytes[14] = std::byte{0x6c};  // version 6, then the traffic class 0xc1
  frame.bytes[15] = std::byte{0x10};
  EXPECT_EQ(frame.priority(), 6u);
  EXPECT_TRUE(frame.important());
}

}  // namespace
}  // namespace jaxcomm

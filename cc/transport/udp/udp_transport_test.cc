#include "cc/transport/udp/udp_transport.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/transport/testing/traffic.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

struct Transfer {
  uint32_t from, to, index;
  Bytes data, into;
};

// Messages of all sizes between two processes, sent and posted in any order, and notices between them.
void ExchangeMany(UdpNode (&nodes)[2], unsigned seed, uint32_t messages) {
  std::mt19937 random(seed);
  std::vector<Transfer> transfers;
  int counts[2] = {}, sends[2] = {};
  for (uint32_t index = 0; index < messages; ++index) {
    const uint32_t from = random() % 2, to = 1 - from;
    const size_t size = random() % 10 ? random() % 10000 : random() % (Transport::kMaxMessage + 1);
    transfers.push_back({from, to, index, Pattern(size, index), Bytes(size)});
    ++counts[to];
    ++sends[from];
  }
  const auto shuffled = [&] {
    std::vector<Transfer*> order;
    for (Transfer& transfer : transfers) order.push_back(&transfer);
    std::shuffle(order.begin(), order.end(), random);
    return order;
  };
  std::thread receivers([&nodes, order = shuffled()] {
    for (Transfer* const t : order) {
      nodes[t->to].transport->Post(t->from, Id(1, t->from, t->to, t->index), All(t->into), t->index % 2 == 0,
                                   [t, done = nodes[t->to].OnReceived()](const Status& status, auto view) {
                                     if (view) std::copy(view.get(), view.get() + t->into.size(), t->into.data());
                                     done(status, nullptr);
                                   });
    }
  });
  uint32_t notices[2] = {};
  for (Transfer* const t : shuffled()) {
    nodes[t->from].transport->Send({{t->to, Id(1, t->from, t->to, t->index)}}, All(std::as_const(t->data)),
                                   nodes[t->from].OnSent());
    nodes[t->from].transport->Notify(t->to, std::to_string(notices[t->from]++));
    if (t->index % 5 == 0) nodes[t->from].transport->Flush();
  }
  for (UdpNode& node : nodes) node.transport->Flush();
  receivers.join();
  for (uint32_t i = 0; i < 2; ++i) {
    nodes[i].Await([&] { return nodes[i].received == counts[i] && nodes[i].sent == sends[i]; });
    const std::vector<std::string> heard = nodes[i].AwaitNotices(1 - i, notices[1 - i]);
    for (uint32_t n = 0; n < notices[1 - i]; ++n) ASSERT_EQ(heard[n], std::to_string(n));
    EXPECT_EQ(nodes[i].failed, 0);
  }
  for (const Transfer& transfer : transfers) EXPECT_TRUE(Same(transfer.into, transfer.data));
}

TEST(UdpTransportTest, ManyMessagesInAnyOrder) {
  for (const uint32_t packet_bytes : {1400u, 8972u, UdpTransport::kMaxPacketBytes}) {
    UdpNode nodes[2] = {UdpNode(0), UdpNode(1)};
    Connect(nodes[0], nodes[1], nullptr, packet_bytes);
    ExchangeMany(nodes, packet_bytes, 300);
  }
}

TEST(UdpTransportTest, OverLinesThatLoseDoubleAndReorderPackets) {
  const BadLine::Faults lines[] = {{1, 0.05, 0, 0}, {2, 0.1, 0.1, 0}, {3, 0, 0, 0.3}, {4, 0.3, 0.2, 0.3}};
  for (const BadLine::Faults& faults : lines) {
    BadLine line(faults);
    UdpNode nodes[2] = {UdpNode(0), UdpNode(1)};
    Connect(nodes[0], nodes[1], &line);
    ExchangeMany(nodes, faults.seed, 40);
    EXPECT_EQ(line.lost > 0, faults.lost > 0);
  }
}

TEST(UdpTransportTest, SpansWithGapsAndManySmallOnes) {
  UdpNode a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(200000, 3);
  Bytes into(data.size());
  std::vector<ConstSpan> out;
  std::vector<Span> in;
  for (int64_t at = 0; at + 100 <= 200000; at += 100) {
    out.push_back({data.data() + at, 60, at});
    in.push_back({into.data() + at, 60, at});
  }
  b.transport->Post(0, Id(1, 0, 1, 0), in, true, b.OnReceived());
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, out, a.OnSent());
  a.transport->Flush();
  b.Await([&] { return b.received == 1; });
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(into[i], i % 100 < 60 ? data[i] : std::byte{0}) << i;
}

TEST(UdpTransportTest, OneMessageForSeveral) {
  UdpNode a(0), b(1), c(2);
  Connect(a, b);
  Connect(a, c);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes at_b(data.size()), at_c(data.size());
  b.transport->Post(0, Id(1, 0, 1, 0), All(at_b), false, b.OnReceived());
  c.transport->Post(0, Id(1, 0, 2, 0), All(at_c), false, c.OnReceived());
  a.transport->Send({{1, Id(1, 0, 1, 0)}, {2, Id(1, 0, 2, 0)}}, All(data), a.OnSent());
  a.transport->Flush();
  a.Await([&] { return a.sent == 1; });
  b.Await([&] { return b.received == 1; });
  c.Await([&] { return c.received == 1; });
  EXPECT_TRUE(Same(at_b, data));
  EXPECT_TRUE(Same(at_c, data));
}

TEST(UdpTransportTest, WhoHelpsTakesMessagesItselfWhenTheLastCallIsNotLongAgo) {
  UdpNode a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; !ReceiveWithHelp(a, b, index, std::chrono::seconds(60)); ++index) {
  }
}

TEST(UdpTransportTest, AfterHelpTheThreadGoesOn) {
  UdpNode a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; index < 100; ++index) ReceiveWithHelp(a, b, index, std::chrono::nanoseconds(0));
}

TEST(UdpTransportTest, MoreThanMayBeEarlyWaitsForItsPost) {
  UdpNode a(0), b(1);
  Connect(a, b, nullptr, UdpTransport::kMaxPacketBytes);
  TakeMoreThanMayBeEarly(a, b);
}

TEST(UdpTransportTest, CallbacksMayCallTheTransport) {
  UdpNode a(0), b(1);
  Connect(a, b);
  PostFromCallbacks(a, b, /*steps=*/3000);
}

TEST(UdpTransportTest, WhatCannotBeIsAnError) {
  UdpNode a(0), b(1);
  Connect(a, b);
  EXPECT_EQ(a.transport->AddPeer(1, Paths().first).message(),
            "process 1 cannot be connected: it has been connected already");
  EXPECT_EQ(a.transport->AddPeer(0, Paths().first).message(), "process 0 cannot be connected: it is this process");
  UdpPath path = Paths().first;
  path.packet_bytes = 65001;
  EXPECT_EQ(a.transport->AddPeer(2, path).message(),
            "process 2 cannot be connected: packets of 65001 bytes; they have 512 to 65000");
  path = Paths().first;
  std::swap(path.connection, path.socket);
  EXPECT_NE(a.transport->AddPeer(2, path).message().find("process 2 cannot be connected: no "), std::string::npos);
  path = Paths().first;
  close(path.socket);
  path.socket = LoopbackUdp();
  EXPECT_EQ(a.transport->AddPeer(2, path).message(),
            "process 2 cannot be connected: no connected UDP socket: Transport endpoint is not connected");
  Bytes data(Transport::kMaxMessage + 1);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(std::as_const(data)), a.OnSent());
  a.Await([&] { return a.failed == 1; });
  a.transport->Notify(1, std::string(Transport::kMaxNotice + 1, 'x'));
  EXPECT_EQ(a.AwaitGone(1), "a notice of 20481 bytes to process 1, more than 20480");
}

TEST(UdpTransportTest, WithoutAThreadThereIsNone) {
  const NoThreads none;
  class : public Transport::Events {
    void OnNotice(uint32_t, std::string_view) override {}
    void OnPeerGone(uint32_t, const Status&) override {}
  } events;
  EXPECT_EQ(UdpTransport::Create(0, &events).status().message(),
            "no transport over UDP can be made: the system has no thread to give");
}

}  // namespace
}  // namespace jaxcomm

#include "cc/transport/tcp/tcp_transport.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/testing/traffic.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(TcpTransportTest, ManyMessagesInAnyOrder) {
  constexpr uint32_t kProcesses = 3;
  for (const unsigned seed : {1u, 2u}) {
    std::mt19937 random(seed);
    Node nodes[kProcesses] = {Node(0), Node(1), Node(2)};
    for (uint32_t a = 0; a < kProcesses; ++a) {
      for (uint32_t b = a + 1; b < kProcesses; ++b) Connect(nodes[a], nodes[b]);
    }
    struct Transfer {
      uint32_t from, to, index;
      Bytes data, into;
    };
    std::vector<Transfer> transfers;
    int counts[kProcesses] = {}, sends[kProcesses] = {};
    for (uint32_t index = 0; index < 300; ++index) {
      const uint32_t from = random() % kProcesses, to = (from + 1 + random() % (kProcesses - 1)) % kProcesses;
      const size_t size = random() % 10 ? random() % 3000 : random() % (Transport::kMaxMessage + 1);
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
        nodes[t->to].transport->Post(t->from, Id(1, t->from, t->to, t->index), All(t->into), false,
                                     nodes[t->to].OnReceived());
      }
    });
    for (Transfer* const t : shuffled()) {
      nodes[t->from].transport->Send({{t->to, Id(1, t->from, t->to, t->index)}}, All(std::as_const(t->data)),
                                     nodes[t->from].OnSent());
      if (t->index % 5 == 0) nodes[t->from].transport->Flush();
    }
    for (Node& node : nodes) node.transport->Flush();
    receivers.join();
    for (uint32_t i = 0; i < kProcesses; ++i) {
      nodes[i].Await([&] { return nodes[i].received == counts[i] && nodes[i].sent == sends[i]; });
    }
    for (const Transfer& transfer : transfers) EXPECT_TRUE(Same(transfer.into, transfer.data));
    for (Node& node : nodes) EXPECT_EQ(node.failed, 0);
  }
}

TEST(TcpTransportTest, OneMessageForSeveral) {
  Node a(0), b(1), c(2);
  Connect(a, b);
  Connect(a, c);
  for (const size_t size : {size_t{100}, size_t{Transport::kMaxMessage}}) {
    const Bytes data = Pattern(size, 1);
    Bytes at_b(size), at_c(size);
    const auto call = static_cast<uint32_t>(size);
    b.transport->Post(0, Id(call, 0, 1, 0), All(at_b), false, b.OnReceived());
    c.transport->Post(0, Id(call, 0, 2, 0), All(at_c), false, c.OnReceived());
    a.sent = b.received = c.received = 0;
    a.transport->Send({{1, Id(call, 0, 1, 0)}, {2, Id(call, 0, 2, 0)}}, All(data), a.OnSent());
    a.transport->Flush();
    b.Await([&] { return b.received == 1; });
    c.Await([&] { return c.received == 1; });
    a.Await([&] { return a.sent == 1; });
    EXPECT_EQ(at_b, data);
    EXPECT_EQ(at_c, data);
  }
}

TEST(TcpTransportTest, NoticesComeInOrderAndBeforeLaterMessages) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(4);
  std::promise<size_t> heard;
  const Bytes data(4);
  b.transport->Post(0, Id(1, 0, 1, 0), All(into), false, [&](const Status&, std::shared_ptr<const std::byte>) {
    heard.set_value(b.AwaitNotices(0, 1000).size());
  });
  for (int i = 0; i < 1000; ++i) a.transport->Notify(1, std::to_string(i));
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  a.transport->Notify(1, std::string(Transport::kMaxNotice, 'x'));
  a.transport->Flush();
  EXPECT_GE(heard.get_future().get(), 1000u);
  const std::vector<std::string> notices = b.AwaitNotices(0, 1001);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(notices[i], std::to_string(i));
}

TEST(TcpTransportTest, WhoHelpsTakesMessagesItselfWhenTheLastCallIsNotLongAgo) {
  Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; !ReceiveWithHelp(a, b, index, std::chrono::seconds(60)); ++index) {
  }
}

TEST(TcpTransportTest, AfterHelpTheThreadGoesOn) {
  Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; index < 100; ++index) ReceiveWithHelp(a, b, index, std::chrono::nanoseconds(0));
}

TEST(TcpTransportTest, ALargeMessageThatIsEarlyIsTold) {
  Node a(0), b(1);
  b.transport->OnEarly(b.OnEarly());
  Connect(a, b);
  const Bytes small = Pattern(Transport::kMaxSmall, 1), large = Pattern(Transport::kMaxSmall + 1, 2);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(small), a.OnSent());
  a.transport->Send({{1, Id(1, 0, 1, 1)}}, All(large), a.OnSent());
  a.transport->Flush();
  b.Await([&] { return !b.early.empty(); });
  EXPECT_EQ(b.early, std::vector<int64_t>{Transport::kMaxSmall + 1});
  Bytes into(large.size());
  b.transport->Post(0, Id(1, 0, 1, 1), All(into), false, b.OnReceived());
  b.Await([&] { return b.received == 1; });
  EXPECT_TRUE(Same(into, large));
}

TEST(TcpTransportTest, MoreThanMayBeEarlyWaitsForItsPost) {
  Node a(0), b(1);
  Connect(a, b);
  TakeMoreThanMayBeEarly(a, b);
}

TEST(TcpTransportTest, MoreThanMayBeEarlyIsReadOnWhenACallbackPosts) {
  constexpr uint32_t kEarly = Transport::kMaxEarlyBytes / Transport::kMaxMessage, kMessages = kEarly + 6;
  Node a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  for (uint32_t i = 0; i < kMessages; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Flush();
  a.Await([&] { return a.sent >= static_cast<int>(kEarly) - 1; });
  std::promise<void> done;
  std::function<void(uint32_t)> post = [&](uint32_t i) {
    if (i == kMessages) return done.set_value();
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false,
                      [&post, i](const Status&, std::shared_ptr<const std::byte>) { post(i + 1); });
  };
  post(0);
  done.get_future().wait();
  EXPECT_TRUE(Same(into, data));
  a.Await([&] { return a.sent == kMessages; });  // until then it may be read
}

TEST(TcpTransportTest, ManyProcesses) {
  constexpr uint32_t kProcesses = 64;
  Node hub(0);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Bytes> into(kProcesses, Bytes(20000));
  for (uint32_t i = 1; i <= kProcesses; ++i) {
    nodes.push_back(std::make_unique<Node>(i));
    Connect(hub, *nodes.back());
    hub.transport->Post(i, Id(1, i, 0, 0), All(into[i - 1]), false, hub.OnReceived());
  }
  const Bytes data = Pattern(20000, 1);
  for (auto& node : nodes) {
    node->transport->Send({{0, Id(1, node->process, 0, 0)}}, All(data), node->OnSent());
    node->transport->Flush();
  }
  hub.Await([&] { return hub.received == kProcesses; });
  for (const Bytes& bytes : into) EXPECT_EQ(bytes, data);
  nodes.clear();
  for (uint32_t i = 1; i <= kProcesses; ++i) EXPECT_EQ(hub.AwaitGone(i), "process " + std::to_string(i) + " has left");
}

TEST(TcpTransportTest, CallbacksMayCallTheTransport) {
  Node a(0), b(1);
  Connect(a, b);
  PostFromCallbacks(a, b, /*steps=*/5000);
}

TEST(TcpTransportTest, WhatCannotBeIsAnError) {
  Node a(0), b(1);
  Connect(a, b);
  const auto [one, other] = Connection();
  EXPECT_EQ(a.transport->AddPeer(1, one).message(), "process 1 cannot be connected: it has been connected already");
  EXPECT_EQ(a.transport->AddPeer(0, other).message(), "process 0 cannot be connected: it is this process");
  EXPECT_EQ(a.transport->AddPeer(2, socket(AF_INET, SOCK_STREAM, 0)).message(),
            "process 2 cannot be connected: no connected TCP socket: Transport endpoint is not connected");
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(a.transport->AddPeer(2, pair[0]).message(),
            "process 2 cannot be connected: no connected TCP socket: Operation not supported");
  close(pair[1]);
  Bytes data(Transport::kMaxMessage + 1);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(std::as_const(data)), a.OnSent());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(
      a.last_error,
      "a message has a span of 262145 bytes at 0 after one that ends at 0; spans must ascend and end before 256 KiB");
  a.transport->Post(1, Id(1, 1, 0, 0), {{data.data(), 2, 4}, {data.data(), 2, 5}}, false, a.OnReceived());
  a.Await([&] { return a.failed == 2; });
  a.transport->Notify(1, std::string(Transport::kMaxNotice + 1, 'x'));
  EXPECT_EQ(a.AwaitGone(1), "a notice of 20481 bytes to process 1, more than 20480");
}

TEST(TcpTransportTest, WithoutAThreadThereIsNone) {
  const NoThreads none;
  class : public Transport::Events {
    void OnNotice(uint32_t, std::string_view) override {}
    void OnPeerGone(uint32_t, const Status&) override {}
  } events;
  EXPECT_EQ(TcpTransport::Create(0, &events).status().message(),
            "no transport over TCP can be made: the system has no thread to give");
}

}  // namespace
}  // namespace jaxcomm

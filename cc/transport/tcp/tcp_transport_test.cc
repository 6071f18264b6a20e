#include "cc/transport/tcp/tcp_transport.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(TcpTransportTest, NoticesComeInOrderAndBeforeLaterMessages) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(4);
  std::promise<size_t> count;
  const Bytes data(4);
  b.transport->Post(0, Id(1, 0, 1, 0), All(into), false, [&](const Status&, std::shared_ptr<const std::byte>) {
    count.set_value(b.AwaitNotices(0, 1000).size());
  });
  for (int i = 0; i < 1000; ++i) a.transport->Notify(1, std::to_string(i));
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  a.transport->Notify(1, std::string(Transport::kMaxNotice, 'x'));
  a.transport->Flush();
  EXPECT_GE(count.get_future().get(), 1000u);
  const std::vector<std::string> notices = b.AwaitNotices(0, 1001);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(notices[i], std::to_string(i));
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

TEST(TcpTransportTest, OnlyConnectedTcpSocketsAreTaken) {
  Node a(0);
  EXPECT_EQ(a.transport->AddPeer(2, {socket(AF_INET, SOCK_STREAM, 0)}).message(),
            "process 2 cannot be connected: no connected TCP socket: Transport endpoint is not connected");
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(a.transport->AddPeer(2, {pair[0]}).message(),
            "process 2 cannot be connected: no connected TCP socket: Operation not supported");
  close(pair[1]);
}

}  // namespace
}  // namespace jaxcomm

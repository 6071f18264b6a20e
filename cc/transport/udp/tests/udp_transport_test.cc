#include "cc/transport/udp/udp_transport.h"

#include <string>
#include <utility>

#include "cc/transport/testing/traffic.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(UdpTransportTest, ManyMessagesInAnyOrder) {
  for (const uint32_t packet_bytes : {1400u, 8972u, UdpTransport::kMaxPacketBytes}) {
    UdpNode a(0), b(1);
    Connect(a, b, nullptr, packet_bytes);
    ExchangeMany<UdpNode>({&a, &b}, packet_bytes, 300);
  }
}

TEST(UdpTransportTest, OverLinesThatLoseDoubleAndReorderPackets) {
  const BadLine::Faults lines[] = {{1, 0.05, 0, 0}, {2, 0.1, 0.1, 0}, {3, 0, 0, 0.3}, {4, 0.3, 0.2, 0.3}};
  for (const BadLine::Faults& faults : lines) {
    BadLine line(faults);
    UdpNode a(0), b(1);
    Connect(a, b, &line);
    ExchangeMany<UdpNode>({&a, &b}, faults.seed, 40);
    EXPECT_EQ(line.lost > 0, faults.lost > 0);
  }
}

TEST(UdpTransportTest, OnlyValidPathsAreTaken) {
  UdpNode a(0);
  UdpPath path = Paths().first;
  path.packet_bytes = 65001;
  EXPECT_EQ(a.transport->AddPeer(2, path).message(),
            "process 2 cannot be connected: packets of 65001 bytes; 512 to 65000 are allowed");
  path = Paths().first;
  std::swap(path.connection, path.sockets[0].socket);
  EXPECT_NE(a.transport->AddPeer(2, path).message().find("process 2 cannot be connected: no"), std::string::npos);
  path = Paths().first;
  close(path.sockets[0].socket);
  path.sockets[0].socket = LoopbackUdp();
  EXPECT_EQ(a.transport->AddPeer(2, path).message(),
            "process 2 cannot be connected: not a connected UDP socket: Transport endpoint is not connected");
}

}  // namespace
}  // namespace jaxcomm

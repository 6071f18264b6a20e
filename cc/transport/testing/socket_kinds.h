// Common names for the types of the TCP transport and of the UDP transport, for tests that both must pass.
//
//   template <typename Kind>
//   class SocketTransportTest : public testing::Test {};
//   TYPED_TEST_SUITE(SocketTransportTest, SocketKinds);
//   TYPED_TEST(SocketTransportTest, CarriesNotices) {
//     typename TypeParam::Node a(0), b(1);
//     Connect(a, b);
//   }
#pragma once

#include <utility>

#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {

struct TcpKind {
  using Transport = TcpTransport;
  using Node = jaxcomm::Node;
  using Raw = jaxcomm::Raw;

  static constexpr const char* kName = "TCP";

  static std::pair<int, int> Paths() { return Connection(); }
  static int ConnectionOf(int path) { return path; }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b); }
};

struct UdpKind {
  using Transport = UdpTransport;
  using Node = UdpNode;
  using Raw = RawUdp;

  static constexpr const char* kName = "UDP";

  static std::pair<UdpPath, UdpPath> Paths() { return jaxcomm::Paths(); }
  static int ConnectionOf(const UdpPath& path) { return path.connection; }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b, nullptr, UdpTransport::kMaxPacketBytes); }
};

using SocketKinds = testing::Types<TcpKind, UdpKind>;

}  // namespace jaxcomm

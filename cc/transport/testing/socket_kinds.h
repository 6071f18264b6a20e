// Gives the types of each transport over sockets the same names, so that the same tests can run on all these
// transports. The transport over libfabric is tested over several providers.
//
//   template <typename Kind>
//   class SocketTransportTest : public testing::Test {};
//   TYPED_TEST_SUITE(SocketTransportTest, SocketKinds);
//   TYPED_TEST(SocketTransportTest, CarriesNotices) {
//     typename TypeParam::Node a(0), b(1);
//     Connect(a, b);
//   }
#pragma once

#include <memory>
#include <utility>

#include "cc/transport/crypto/libcrypto.h"
#include "cc/transport/fabric/testing/node.h"
#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {

struct TcpKind {
  using Node = jaxcomm::Node;
  using Raw = jaxcomm::Raw;

  static constexpr const char* kName = "TCP";

  static bool IsAvailable() { return true; }
  static Status Create(uint32_t process, Transport::Events* events) {
    return TcpTransport::Create(process, events).status();
  }
  static std::pair<TcpPath, TcpPath> Paths() { return TcpPaths(/*is_encrypted=*/false); }
  static std::pair<TcpPath, TcpPath> PathsBetween(Node&, Node&) { return Paths(); }
  static int ConnectionOf(const TcpPath& path) { return path.socket; }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b); }
};

struct EncryptedTcpKind : TcpKind {
  using Node = EncryptedNode;

  static bool IsAvailable() { return Libcrypto::Get().ok(); }
  static std::pair<TcpPath, TcpPath> PathsBetween(Node&, Node&) { return TcpPaths(/*is_encrypted=*/true); }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b); }
};

struct UdpKind {
  using Node = UdpNode;
  using Raw = RawUdp;

  static constexpr const char* kName = "UDP";

  static bool IsAvailable() { return true; }
  static Status Create(uint32_t process, Transport::Events* events) {
    return UdpTransport::Create(process, events).status();
  }
  static std::pair<UdpPath, UdpPath> Paths() { return jaxcomm::Paths(); }
  static std::pair<UdpPath, UdpPath> PathsBetween(Node&, Node&) { return Paths(); }
  static int ConnectionOf(const UdpPath& path) { return path.connection; }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b, nullptr, UdpTransport::kMaxPacketBytes); }
};

template <SealKind kKind>
struct SealedUdpKind : UdpKind {
  using Node = SealedUdpNode<kKind>;

  static bool IsAvailable() { return Libcrypto::Get().ok(); }
  static std::pair<UdpPath, UdpPath> PathsBetween(Node&, Node&) { return Sealed(kKind, Paths()); }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b, nullptr, UdpTransport::kMaxPacketBytes); }
};

template <typename Provider>
struct FabricKind {
  using Node = FabricNode<Provider>;
  using Raw = RawFabric<Provider>;

  static constexpr const char* kName = "libfabric";

  static bool IsAvailable() { return OpenEndpoint(Provider::kProvider).ok(); }
  static Status Create(uint32_t process, Transport::Events* events) {
    std::unique_ptr<Endpoint> endpoint = std::move(OpenEndpoint(Provider::kProvider).value());
    return FabricTransport::Create(process, kFabricProcesses, events, std::move(endpoint)).status();
  }
  static std::pair<FabricPath, FabricPath> PathsBetween(Node& a, Node& b) { return FabricPaths(a, b); }
  static void ConnectFast(Node& a, Node& b) { Connect(a, b); }
};

using IpKinds = testing::Types<TcpKind, UdpKind>;
using SocketKinds =
    testing::Types<TcpKind, EncryptedTcpKind, UdpKind, SealedUdpKind<SealKind::kGmac>, SealedUdpKind<SealKind::kGcm>,
                   FabricKind<RxmOverTcp>, FabricKind<RxdOverUdp>, FabricKind<SharedMemory>>;

}  // namespace jaxcomm

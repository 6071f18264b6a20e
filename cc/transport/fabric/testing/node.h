// Simulated processes for tests. They run within one process, are connected over libfabric, and record the events they
// receive.
//
//   FabricNode<RxmOverTcp> a(0), b(1);
//   Connect(a, b);
//   a.transport->Notify(1, "here");
//   RawFabric<RxmOverTcp> raw(a, 2);   // the test plays process 2, of which only the connection exists
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cc/transport/fabric/endpoint.h"
#include "cc/transport/fabric/fabric_transport.h"
#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/testing/recorded_events.h"
#include "gtest/gtest.h"

namespace jaxcomm {

constexpr uint32_t kFabricProcesses = 4;  // number of processes in a test's job
constexpr SipKey kFabricUpKey = {1, 2, 3}, kFabricDownKey = {4, 5, 6};

// The number of tries with the faster providers.
#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kManyTries = 50;  // with ThreadSanitizer each try takes 30 times as long
#else
constexpr uint32_t kManyTries = 1000;
#endif

// The providers of Debian's libfabric that need no special hardware. kTries: number of cancels and of fences in a test.
struct RxmOverTcp {
  static constexpr const char* kProvider = "tcp;ofi_rxm";
  static constexpr uint32_t kTries = kManyTries;
};
struct RxdOverUdp {
  static constexpr const char* kProvider = "udp;ofi_rxd";
  static constexpr uint32_t kTries = 100;
};
struct SharedMemory {
  static constexpr const char* kProvider = "shm";
  static constexpr uint32_t kTries = kManyTries;
};
using FabricProviders = testing::Types<RxmOverTcp, RxdOverUdp, SharedMemory>;

// Tries several times, because libfabric numbers the files of its shared memory in ascending order, and the file with
// the next number may exist. It may belong to a process with the same process ID in another container, or remain after
// an endpoint with messages under way.
inline Result<std::unique_ptr<Endpoint>> OpenEndpoint(const std::string& provider) {
  constexpr int kMostTries = 100;
  const bool is_network = provider != "shm";
  for (int tries = 1;; ++tries) {
    Result<std::unique_ptr<Endpoint>> made =
        Endpoint::Open({provider, is_network ? "lo" : ""}, FabricTransport::Operations(kFabricProcesses));
    if (made.ok() || is_network || tries == kMostTries) return made;
  }
}

template <typename Provider>
class FabricNode : public RecordedEvents {
 public:
  explicit FabricNode(uint32_t process, const std::string& rail = "", std::chrono::nanoseconds silence = kSilence)
      : RecordedEvents(process) {
    Result<std::unique_ptr<Endpoint>> endpoint = OpenEndpoint(Provider::kProvider);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
    Result<std::unique_ptr<FabricTransport>> made =
        FabricTransport::Create(process, kFabricProcesses, this, std::move(endpoint.value()), rail, silence);
    EXPECT_TRUE(made.ok()) << made.status().message();
    transport = std::move(made.value());
  }
  ~FabricNode() override { transport.reset(); }

  std::unique_ptr<FabricTransport> transport;
};

// Returns both ends of a new path.
template <typename Provider>
std::pair<FabricPath, FabricPath> FabricPaths(FabricNode<Provider>& a, FabricNode<Provider>& b,
                                              const SipKey& up = kFabricUpKey) {
  const auto [to_b, to_a] = Connection();
  return {{to_b, b.transport->domain().address, up, kFabricDownKey},
          {to_a, a.transport->domain().address, kFabricDownKey, up}};
}

template <typename Provider>
void Connect(FabricNode<Provider>& a, FabricNode<Provider>& b, const SipKey& up = kFabricUpKey) {
  const auto [to_b, to_a] = FabricPaths(a, b, up);
  EXPECT_TRUE(a.transport->AddPeer(b.process, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(a.process, to_a).ok());
}

// A process that the test itself plays. It has a connection, but receives no frames.
template <typename Provider>
class RawFabric {
 public:
  RawFabric(FabricNode<Provider>& node, uint32_t process) {
    const auto [ours, its] = Connection();
    connection_ = ours;
    const FabricPath path{its, node.transport->domain().address, kFabricDownKey, kFabricUpKey};
    EXPECT_TRUE(node.transport->AddPeer(process, path).ok());
  }
  ~RawFabric() { Close(); }

  void Send(char byte) { ASSERT_EQ(send(connection_, &byte, 1, MSG_NOSIGNAL), 1); }
  void Close() {
    if (connection_ >= 0) close(std::exchange(connection_, -1));
  }
  int connection() const { return connection_; }

 private:
  int connection_;
};

}  // namespace jaxcomm

// Tests rails over real connections: a host that falls silent on all rails, and a rail that loses long packets.
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/rails.h"
#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/testing/drop_packets.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRails = 2;
constexpr std::chrono::milliseconds kShort(600);

// One of two processes. Each rail of the process has its own transport.
class Process : public RecordedEvents {
 public:
  Process(uint32_t self, bool is_udp) : RecordedEvents(self), rails(2, kRails, this) {
    std::vector<RailTransport*> transports;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      const std::string name = "eth" + std::to_string(rail);
      if (is_udp) {
        udp.push_back(std::move(UdpTransport::Create(self, rails.events(rail), name, kShort).value()));
        transports.push_back(udp.back().get());
      } else {
        tcp.push_back(std::move(TcpTransport::Create(self, rails.events(rail), name, kShort).value()));
        transports.push_back(tcp.back().get());
      }
    }
    rails.Connect(std::move(transports));
    EXPECT_TRUE(rails.AddProcess(1 - self, {{0, {512, 512}}}, {0, 1}).ok());
  }
  ~Process() override {
    for (const auto& rail : tcp) rail->Leave();
    for (const auto& rail : udp) rail->Leave();
    rails.Stop();
  }
  void Connect(uint32_t rail, const UdpPath& path) {
    if (!udp.empty()) {
      EXPECT_TRUE(udp[rail]->AddPeer(1 - process, path).ok());
      return;
    }
    close(path.sockets[0].socket);
    EXPECT_TRUE(tcp[rail]->AddPeer(1 - process, {path.connection}).ok());
  }

  Rails rails;
  std::vector<std::unique_ptr<TcpTransport>> tcp;
  std::vector<std::unique_ptr<UdpTransport>> udp;
};

class SilentHostTest : public testing::TestWithParam<bool> {
 protected:
  const Bytes data_ = Pattern(Transport::kMaxMessage, 1);
};

TEST_P(SilentHostTest, AHostThatFallsSilentOnAllRailsIsGone) {
  Process a(0, GetParam());
  std::array<UdpPath, kRails> its;  // the paths of the other host, which has no progress thread
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    const auto [own, other] = Paths();
    its[rail] = other;
    a.Connect(rail, own);
    DropPackets(other.connection);
    DropPackets(other.sockets[0].socket);
  }
  ASSERT_TRUE(a.rails.Start().ok());
  a.rails.Notify(1, "is anybody there");
  for (uint32_t i = 0; i < 4; ++i) a.rails.Send({{1, Id(1, 0, 1, i)}}, All(data_), a.OnSent());
  a.rails.Flush();
  const std::string why = a.AwaitGone(1);
  EXPECT_EQ(why.find("process 1 is gone on rail eth"), 0u) << why;
  EXPECT_NE(why.find("its host has not answered for 0.6 s"), std::string::npos) << why;
  a.Await([&] { return a.failed == 4; });
  for (const UdpPath& path : its) {
    close(path.connection);
    close(path.sockets[0].socket);
  }
}

TEST_P(SilentHostTest, ARailThatLosesLongPacketsIsFenced) {
  Process a(0, GetParam()), b(1, GetParam());
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    const auto [own, other] = Paths();
    if (rail == 1) {
      DropPackets(other.connection, /*longer_than=*/1000);
      DropPackets(other.sockets[0].socket, /*longer_than=*/1000);
    }
    a.Connect(rail, own);
    b.Connect(rail, other);
  }
  ASSERT_TRUE(a.rails.Start().ok() && b.rails.Start().ok());
  constexpr uint32_t kMessages = 8;
  std::vector<Bytes> into(kMessages, Bytes(data_.size()));
  for (uint32_t i = 0; i < kMessages; ++i) {
    const MessageId id{{1, 1, 0, 0}, 0, 1, 0, i, 4 << 20};
    b.rails.Post(0, id, All(into[i]), false, b.OnReceived());
    a.rails.Send({{1, id}}, All(data_), a.OnSent());
    a.rails.Notify(1, "which comes");
  }
  a.rails.Flush();
  b.Await([&] { return b.received + b.failed == kMessages; });
  EXPECT_EQ(b.failed, 0) << b.last_error;
  for (const Bytes& bytes : into) EXPECT_TRUE(Same(bytes, data_));
  EXPECT_FALSE(a.rails.states()[1].is_open);
}

INSTANTIATE_TEST_SUITE_P(OfBothKinds, SilentHostTest, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Udp" : "Tcp"; });

}  // namespace
}  // namespace jaxcomm

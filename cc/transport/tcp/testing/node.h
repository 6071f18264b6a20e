// Simulated processes for tests. They run within one process, are connected by TCP, and record the events they receive.
//
//   Node a(0), b(1);
//   Connect(a, b);
//   a.transport->Notify(1, "here");
//   EXPECT_EQ(b.AwaitNotices(0, 1)[0], "here");
//   Raw raw(a, 2);                    // the test plays process 2, and sends any bytes to `a`
//   EncryptedNode c(2), d(3);
//   Connect(c, d);                    // with encryption
#pragma once

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/tcp/tcp_transport.h"
#include "cc/transport/testing/recorded_events.h"
#include "gtest/gtest.h"

namespace jaxcomm {

inline std::pair<int, int> Connection() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, any, length), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, any, &length), 0);
  EXPECT_EQ(connect(a, any, length), 0);
  const int b = accept(listener, nullptr, nullptr);
  close(listener);
  return {a, b};
}

// kUpCipherKey seals the bytes from the first of two processes to the second, and kDownCipherKey seals the bytes from
// the second to the first.
constexpr CipherKey kUpCipherKey = {1, 2, 3}, kDownCipherKey = {4, 5, 6};

inline std::pair<TcpPath, TcpPath> TcpPaths(bool is_encrypted) {
  const auto [one, other] = Connection();
  if (!is_encrypted) return {{one}, {other}};
  return {{one, {{kUpCipherKey, kDownCipherKey}}}, {other, {{kDownCipherKey, kUpCipherKey}}}};
}

template <typename Kind>
class NodeOf : public RecordedEvents {
 public:
  explicit NodeOf(uint32_t process, const std::string& rail = "", std::chrono::nanoseconds silence = kSilence)
      : RecordedEvents(process) {
    Result<std::unique_ptr<Kind>> made = Kind::Create(process, this, rail, silence);
    EXPECT_TRUE(made.ok()) << made.status().message();
    transport = std::move(made.value());
  }
  ~NodeOf() override { transport.reset(); }

  std::unique_ptr<Kind> transport;
};
using Node = NodeOf<TcpTransport>;

struct EncryptedNode : Node {
  using Node::Node;
  ~EncryptedNode() override { transport.reset(); }  // before ~Node, because the transport's thread calls this object
};

inline void Connect(Node& a, Node& b, bool is_encrypted = false) {
  const auto [to_b, to_a] = TcpPaths(is_encrypted);
  EXPECT_TRUE(a.transport->AddPeer(b.process, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(a.process, to_a).ok());
}
inline void Connect(EncryptedNode& a, EncryptedNode& b) { Connect(a, b, /*is_encrypted=*/true); }

// A process that the test itself plays.
class Raw {
 public:
  Raw(Node& node, uint32_t process, bool is_encrypted = false) {
    const auto [ours, its] = TcpPaths(is_encrypted);
    socket_ = ours.socket;
    EXPECT_TRUE(node.transport->AddPeer(process, its).ok());
  }
  ~Raw() { Close(); }

  void Send(const Bytes& bytes) {
    ASSERT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void Send(const Header& header, const Bytes& payload = {}) {
    Bytes frame(kHeaderBytes);
    EncodeHeader(header, frame.data());
    frame.insert(frame.end(), payload.begin(), payload.end());
    Send(frame);
  }
  // Waits until the other kernel has acknowledged all bytes. Call this before a reset, which drops bytes in flight.
  void AwaitArrival() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    int left = 1;
    while (ioctl(socket_, SIOCOUTQ, &left) == 0 && left > 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(left, 0);
  }
  void Reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  Bytes Read(size_t size) {
    Bytes bytes(size);
    EXPECT_EQ(recv(socket_, bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return bytes;
  }
  // Waits until the other side resets the connection, and ignores the bytes that arrive before the reset. The other
  // side need not have received all bytes.
  void AwaitReset() {
    const timeval limit{20, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    std::byte ignored[4096];
    ssize_t bytes;
    do bytes = recv(socket_, ignored, sizeof(ignored), 0);
    while (bytes > 0);
    EXPECT_TRUE(bytes < 0 && errno == ECONNRESET) << std::strerror(errno);
  }
  int connection() const { return socket_; }

 private:
  int socket_;
};

}  // namespace jaxcomm

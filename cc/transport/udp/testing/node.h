// Simulated processes for tests. They run within one process, are connected by UDP, and record the events they receive.
//
//   UdpNode a(0), b(1);
//   Connect(a, b);                    // or over a BadLine
//   a.transport->Notify(1, "here");
//   RawUdp raw(a, 2);                 // the test plays process 2, and sends any bytes to `a`
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/transport/tcp/testing/node.h"
#include "cc/transport/testing/recorded_events.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/testing/bad_line.h"
#include "cc/transport/udp/udp_transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {

using UdpNode = NodeOf<UdpTransport>;

constexpr uint32_t kFragment = 1400 - kPacketHeaderBytes;  // frame bytes in a packet
// kUpKey seals the packets that the first of two processes sends. kDownKey seals the packets that it receives.
constexpr SipKey kUpKey = {1, 2, 3}, kDownKey = {4, 5, 6};

// Returns both ends of a path. If `line` is given, it connects the UDP sockets. `up` is the key of the packets from the
// first end.
inline std::pair<UdpPath, UdpPath> Paths(BadLine* line = nullptr, uint32_t packet_bytes = 1400,
                                         const SipKey& up = kUpKey) {
  constexpr uint32_t kWindow = 512 << 10;
  const auto [one, other] = Connection();
  const int a = LoopbackUdp(), b = LoopbackUdp();
  if (line) {
    line->Between(a, b);
  } else {
    ConnectUdp(a, b);
    ConnectUdp(b, a);
  }
  return {{one, {{a, {SealKind::kSipHash, up, kDownKey, {}}}}, packet_bytes, kWindow},
          {other, {{b, {SealKind::kSipHash, kDownKey, up, {}}}}, packet_bytes, kWindow}};
}

// Returns the paths, changed to this kind of seal.
inline std::pair<UdpPath, UdpPath> Sealed(SealKind kind, std::pair<UdpPath, UdpPath> paths) {
  paths.first.sockets[0].keys = {kind, {}, {}, {kUpCipherKey, kDownCipherKey}};
  paths.second.sockets[0].keys = {kind, {}, {}, {kDownCipherKey, kUpCipherKey}};
  return paths;
}

template <SealKind kKind>
struct SealedUdpNode : UdpNode {
  using UdpNode::UdpNode;
  ~SealedUdpNode() override { transport.reset(); }  // first, because the transport's thread reports events to this type
};

template <SealKind kKind>
void Connect(SealedUdpNode<kKind>& a, SealedUdpNode<kKind>& b, BadLine* line = nullptr, uint32_t packet_bytes = 1400) {
  const auto [to_b, to_a] = Sealed(kKind, Paths(line, packet_bytes));
  EXPECT_TRUE(a.transport->AddPeer(b.process, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(a.process, to_a).ok());
}

inline void Connect(UdpNode& a, UdpNode& b, BadLine* line = nullptr, uint32_t packet_bytes = 1400) {
  const auto [to_b, to_a] = Paths(line, packet_bytes);
  EXPECT_TRUE(a.transport->AddPeer(b.process, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(a.process, to_a).ok());
}

// Returns both ends of several paths, one for each line.
inline std::pair<UdpPath, UdpPath> PathsOver(std::deque<BadLine>& lines) {
  auto [one, other] = Paths(&lines.front());
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto number = static_cast<uint8_t>(i);
    const SipKey up = {1, 2, 3, number}, down = {4, 5, 6, number};
    const int a = LoopbackUdp(), b = LoopbackUdp();
    lines[i].Between(a, b);
    one.sockets.push_back({a, {SealKind::kSipHash, up, down, {}}});
    other.sockets.push_back({b, {SealKind::kSipHash, down, up, {}}});
  }
  return {one, other};
}

// Returns whether a packet from RawUdp::Read carries the bytes of `message` at the offset in `header`.
inline bool IsPartOf(const Bytes& message, const PacketHeader& header, const Bytes& packet) {
  const size_t own = header.offset == 0 ? kHeaderBytes : 0, at = header.offset + own - kHeaderBytes;
  const Bytes part(packet.begin() + static_cast<ptrdiff_t>(kPacketHeaderBytes + own), packet.end());
  return at + part.size() <= message.size() && Same(part, {message.begin() + static_cast<ptrdiff_t>(at),
                                                           message.begin() + static_cast<ptrdiff_t>(at + part.size())});
}

// A process that the test plays itself, with raw packets.
class RawUdp {
 public:
  // `sends`: the key of the packets that the test sends.
  RawUdp(UdpNode& node, uint32_t process, const SipKey& sends = kUpKey) {
    UdpPath its;
    std::tie(path_, its) = Paths(nullptr, 1400, sends);
    EXPECT_TRUE(node.transport->AddPeer(process, its).ok());
  }
  ~RawUdp() { Close(); }

  void SendBytes(const Bytes& packet) {
    ASSERT_EQ(send(path_.sockets[0].socket, packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
  }
  // Returns a sealed packet. Its number follows the number of the previous packet.
  Bytes Seal(PacketKind kind, uint64_t frame, uint32_t offset, uint32_t bytes, const Bytes& payload) {
    Bytes packet(kPacketHeaderBytes);
    packet.insert(packet.end(), payload.begin(), payload.end());
    SealPacket({kind, /*asks=*/true, number_++, frame, offset, bytes}, path_.sockets[0].keys.sends, packet.data(),
               packet.size());
    return packet;
  }
  // Sends the first of the three packets of a message. The packet is filled with ones.
  void SendFirstOfThree(const MessageId& id) {
    Bytes first(kFragment, std::byte{1});
    EncodeHeader({FrameType::kMessage, 3 * kFragment - kHeaderBytes, id}, first.data());
    SendBytes(Seal(PacketKind::kMessage, 0, 0, 3 * kFragment, first));
  }
  // Sends the third packet of the message, and then the second packet. Both packets are filled with twos.
  void SendOthersOfThree() {
    for (const uint32_t fragment : {2u, 1u}) {
      const Bytes twos(kFragment, std::byte{2});
      SendBytes(Seal(PacketKind::kMessage, 0, fragment * kFragment, 3 * kFragment, twos));
    }
  }
  // Returns a sealed packet that holds a whole frame.
  Bytes Seal(PacketKind kind, uint64_t frame, const Header& header, const Bytes& payload = {}) {
    Bytes bytes(kHeaderBytes);
    EncodeHeader(header, bytes.data());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return Seal(kind, frame, 0, static_cast<uint32_t>(bytes.size()), bytes);
  }
  // Returns the next packet, skipping acknowledgements.
  std::pair<PacketHeader, Bytes> Read() {
    for (;;) {
      Bytes packet(65536);
      const ssize_t size = recv(path_.sockets[0].socket, packet.data(), packet.size(), 0);
      EXPECT_GT(size, 0);
      packet.resize(static_cast<size_t>(size));
      const std::optional<PacketHeader> header =
          OpenPacket(packet.data(), packet.size(), path_.sockets[0].keys.receives);
      EXPECT_TRUE(header.has_value());
      if (header->kind != PacketKind::kAnswer) return {*header, packet};
    }
  }
  void SendNotice(uint64_t frame) { SendBytes(Seal(PacketKind::kOrdered, frame, {FrameType::kNotice, 0, {}})); }
  void ReceiveMarks() {
    const int on = 1;
    ASSERT_EQ(setsockopt(path_.sockets[0].socket, IPPROTO_IP, IP_RECVTOS, &on, sizeof(on)), 0);
  }
  // Returns the next packet and its TrafficClass byte. Call ReceiveMarks first.
  std::pair<PacketHeader, int> ReadMarked() {
    Bytes packet(65536);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec vector{packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(path_.sockets[0].socket, &message, 0);
    EXPECT_GT(size, 0);
    const auto header = OpenPacket(packet.data(), static_cast<size_t>(size), path_.sockets[0].keys.receives);
    EXPECT_TRUE(header.has_value());
    const cmsghdr* const marks = CMSG_FIRSTHDR(&message);
    EXPECT_TRUE(marks != nullptr && marks->cmsg_type == IP_TOS);
    return {*header, *CMSG_DATA(marks)};
  }
  void ReadAnswer() {
    std::array<std::byte, 512> packet;
    const ssize_t size = recv(path_.sockets[0].socket, packet.data(), packet.size(), 0);
    ASSERT_GT(size, 0);
    const auto header = OpenPacket(packet.data(), static_cast<size_t>(size), path_.sockets[0].keys.receives);
    ASSERT_TRUE(header.has_value());
    EXPECT_EQ(header->kind, PacketKind::kAnswer);
  }
  bool ComesWithin(std::chrono::milliseconds time) {
    pollfd ready{path_.sockets[0].socket, POLLIN, 0};
    return poll(&ready, 1, static_cast<int>(time.count())) > 0;
  }
  void Close() {
    for (int* const socket : {&path_.connection, &path_.sockets[0].socket}) {
      if (*socket >= 0) close(std::exchange(*socket, -1));
    }
  }
  int connection() const { return path_.connection; }

 private:
  UdpPath path_;
  uint64_t number_ = 0;
};

}  // namespace jaxcomm

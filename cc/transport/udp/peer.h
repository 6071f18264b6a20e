// Another process, for UdpTransport.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/socket.h"
#include "cc/transport/udp/assembler.h"
#include "cc/transport/udp/datagrams.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/rate_control.h"
#include "cc/transport/udp/send_queue.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {

struct UdpTransport::Peer : SocketPeer {
  Peer(uint32_t process, const UdpPath& path, Inbox* inbox)
      : SocketPeer(process),
        path(path),
        assembler(process, FragmentBytes(path), inbox),
        queue(FragmentBytes(path), path.window),
        rate(path.packet_bytes) {}

  void Push(const Header& header, std::shared_ptr<Outgoing> message) override {
    queue.Push(header, std::move(message));
  }
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload) override {
    queue.PushCopy(header, payload);
  }
  size_t copied_bytes() const override { return queue.copied_bytes(); }
  bool waits() const override { return assembler.waits(); }
  bool is_used() const override { return users > 0; }

  // For a new path: the sockets of the last one have been closed.
  void Restart(const UdpPath& its, Inbox* inbox) {
    path = its;
    assembler = Assembler(process, FragmentBytes(path), inbox);
    queue = SendQueue(FragmentBytes(path), path.window);
    rate = RateControl(path.packet_bytes);
    held_until = answered = unanswered_since = response = deviation = answer_at = forged = 0;
    unanswered = only_here = silent_looks = 0;
    lost_bytes = 0;
    watch = ConnectionWatch();
    blocked = left = is_asked = false;
    gone = Status();
  }

  // Of a frame, in each packet: no element is divided between two.
  static size_t FragmentBytes(const UdpPath& path) { return (path.packet_bytes - kPacketHeaderBytes) / 8 * 8; }

  // After this time without an answer to packets under way one is asked for: longer each time that none comes.
  int64_t AnswerTimeout() const {
    constexpr int64_t kLeast = 2000000, kMost = 200000000;  // nanoseconds
    return std::min(kMost, (response + 2 * deviation + kLeast) << std::min(unanswered, 6));
  }

  // Long packets get lost, over and over, while shorter ones come.
  bool loses_long() const { return lost_bytes > 0 && !queue.empty(); }
  void NoteLongLost(const Answered& answered) {
    if (answered.longest_come >= lost_bytes) lost_bytes = 0;
    if (answered.longest_come < answered.often_lost) lost_bytes = answered.often_lost;
  }

  UdpPath path;
  Assembler assembler;
  SendQueue queue;
  RateControl rate;
  DatagramOptions datagrams;
  int users = 0;           // threads in system calls with its sockets
  int64_t held_until = 0;  // the process has no room
  // Of the batch that is being written.
  TrafficClass traffic_class = TrafficClass::kImportant;
  std::vector<std::byte> bytes;
  std::vector<size_t> sizes;
  std::vector<PacketHeader> headers;
  // Nanoseconds of the steady clock.
  int64_t answered = 0;   // the time when the last answer came, or the first packet after it was sent
  int64_t response = 0;   // until an answer comes, smoothed
  int64_t deviation = 0;  // from that
  int64_t answer_at = 0;
  int unanswered = 0;  // probes in a row
  // For finding that UDP does not pass: the time when the last packet was answered, or the first one after that was
  // sent; whether the process was asked over the connection beside the last probe; and the number of its answers there
  // since the last answered packet.
  int64_t unanswered_since = 0;
  bool is_asked = false;
  int only_here = 0;
  // Packets that have come, over all paths, now and at the last ProgressTo.
  uint64_t confirmed = 0, reported_confirmed = 0;
  uint64_t reported = 0;  // by ProgressTo
  size_t lost_bytes = 0;  // of a frame, in packets that get lost while shorter ones come; 0: none do
  ConnectionWatch watch;
  int64_t forged = 0;
};

// Of the steady clock.
inline int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace jaxcomm

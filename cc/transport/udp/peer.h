// The state of UdpTransport for one other process.
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
  Peer(uint32_t process, const UdpPath& path, Inbox* inbox, PacketSeals seals)
      : SocketPeer(process),
        path(path),
        seals(std::move(seals)),
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

  // Starts a new path. The sockets of the previous path are closed already.
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

  // Returns the number of frame bytes in each packet. It is a multiple of 8, so that no element is split between
  // packets.
  static size_t FragmentBytes(const UdpPath& path) {
    return (path.packet_bytes - kPacketHeaderBytes - PacketTrailerBytes(path.keys.kind)) / 8 * 8;
  }

  // Returns the time, in nanoseconds, after which a probe requests a missing acknowledgement. The time doubles with
  // each unanswered probe, up to a limit.
  int64_t AnswerTimeout() const {
    constexpr int64_t kLeast = 2000000, kMost = 200000000;  // nanoseconds
    return std::min(kMost, (response + 2 * deviation + kLeast) << std::min(unanswered, 6));
  }

  // Returns whether long packets repeatedly get lost while shorter packets arrive.
  bool loses_long() const { return lost_bytes > 0 && !queue.empty(); }
  void NoteLongLost(const Answered& answered) {
    if (answered.longest_come >= lost_bytes) lost_bytes = 0;
    if (answered.longest_come < answered.often_lost) lost_bytes = answered.often_lost;
  }

  UdpPath path;
  PacketSeals seals;
  Assembler assembler;
  SendQueue queue;
  RateControl rate;
  DatagramOptions datagrams;
  int users = 0;           // number of threads in system calls on the sockets
  int64_t held_until = 0;  // until this time only probes are sent, because the process has no room
  // The packets that Write is sending.
  TrafficClass traffic_class = TrafficClass::kImportant;
  std::vector<std::byte> bytes;
  std::vector<size_t> sizes;
  std::vector<PacketHeader> headers;
  // The next four are in nanoseconds. `answered` and `answer_at` are times of the steady clock. AnswerTimeout starts at
  // `answered`: the latest of the last acknowledgement, the last such timeout, and the first packet in flight.
  int64_t answered = 0;
  int64_t response = 0;   // smoothed RTT, including the time that the receiver took to acknowledge
  int64_t deviation = 0;  // smoothed deviation of the RTT from `response`
  int64_t answer_at = 0;  // when the next acknowledgement is due; 0: none is due
  int unanswered = 0;     // unanswered probes in a row
  // The next three detect a path that passes no UDP packets.
  int64_t unanswered_since = 0;  // time of the last acknowledgement or, if later, of the first packet in flight
  bool is_asked = false;         // whether the process owes a reply over TCP
  int only_here = 0;             // replies over TCP since the last acknowledgement
  // Numbers of packets acknowledged on this path and all previous paths: until now (confirmed), and until the last
  // ProgressTo (reported_confirmed).
  uint64_t confirmed = 0, reported_confirmed = 0;
  uint64_t reported = 0;  // SendProgress::confirmed that ProgressTo last returned
  // Frame bytes in a packet that gets lost while shorter packets arrive; 0 if there is no such packet.
  size_t lost_bytes = 0;
  ConnectionWatch watch;
  int64_t forged = 0;
};

inline int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace jaxcomm

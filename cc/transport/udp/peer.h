// The state that UdpTransport keeps for another process.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
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

// One of the paths to a process. Times are in nanoseconds of the steady clock.
struct UdpTransport::Path {
  // Returns the time after which a probe requests a missing acknowledgement. The time doubles with each unanswered
  // probe, up to a limit.
  int64_t AnswerTimeout() const {
    constexpr int64_t kLeast = 2000000, kMost = 200000000;  // nanoseconds
    return std::min(kMost, (response + 2 * deviation + kLeast) << std::min(unanswered, 6));
  }

  UdpSocket ends;
  PacketSeals seals;
  RateControl rate;
  DatagramOptions datagrams;
  bool blocked = false;    // the kernel accepts no more packets for now
  bool is_silent = false;  // the path gets only probes, because its packets stay unanswered while other paths work
  // AnswerTimeout starts at `answered`, the latest of three times: the last acknowledgement, the end of the last
  // timeout, and the first packet in flight.
  int64_t answered = 0;
  int64_t confirmed_at = 0;  // time of the last acknowledgement
  int64_t response = 0;      // smoothed RTT, including the time that the receiver took to acknowledge
  int64_t deviation = 0;     // smoothed deviation of the RTT from `response`
  int64_t answer_at = 0;     // when the next acknowledgement is due; 0: none is due
  int unanswered = 0;        // unanswered probes in a row
};

struct UdpTransport::Peer : SocketPeer {
  // `seals` has one entry per path.
  Peer(uint32_t process, const UdpPath& path, const std::vector<DatagramOptions>& datagrams, Inbox* inbox,
       std::vector<PacketSeals> seals)
      : SocketPeer(process), path(path), assembler(MakeAssembler(inbox)), queue(MakeQueue()) {
    AddPaths(datagrams, std::move(seals));
  }

  void Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t priority) override {
    queue.Push(header, std::move(message), priority);
  }
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t priority) override {
    queue.PushCopy(header, payload, priority);
  }
  size_t copied_bytes() const override { return queue.copied_bytes(); }
  bool waits() const override { return assembler.waits(); }
  bool is_used() const override { return users > 0; }

  // Starts a new path. The sockets of the previous path are closed already.
  void Restart(const UdpPath& its, const std::vector<DatagramOptions>& datagrams, Inbox* inbox,
               std::vector<PacketSeals> seals) {
    path = its;
    assembler = MakeAssembler(inbox);
    queue = MakeQueue();
    paths.clear();
    AddPaths(datagrams, std::move(seals));
    answers_over = 0;
    held_until = confirmed_at = unanswered_since = forged = 0;
    newest_answer = 0;
    only_here = silent_looks = 0;
    lost_bytes = 0;
    watch = ConnectionWatch();
    left = is_asked = false;
    gone = Status();
  }

  size_t num_paths() const { return path.sockets.size(); }
  Assembler MakeAssembler(Inbox* inbox) const { return Assembler(process, FragmentBytes(path), inbox, num_paths()); }
  SendQueue MakeQueue() const { return SendQueue(FragmentBytes(path), path.window, num_paths(), path.priorities); }
  void AddPaths(const std::vector<DatagramOptions>& datagrams, std::vector<PacketSeals> seals) {
    for (size_t i = 0; i < num_paths(); ++i) {
      paths.push_back(
          {path.sockets[i], std::move(seals[i]), RateControl(path.packet_bytes, num_paths()), datagrams[i]});
    }
  }

  // Returns the class of packets of a priority. A job with one priority sends its packets like other traffic.
  TrafficClass ClassOf(uint32_t priority, bool is_important) const {
    const uint32_t queue = path.priorities == 1 ? 0 : TrafficClass::kQueues - 1 - priority;
    return {static_cast<uint8_t>(queue), is_important};
  }

  // Returns the number of frame bytes in each packet. It is a multiple of 8, so that no element is split between
  // packets.
  static size_t FragmentBytes(const UdpPath& path) {
    return (path.packet_bytes - kPacketHeaderBytes - PacketTrailerBytes(path.sockets[0].keys.kind)) / 8 * 8;
  }

  // Returns the longest RTT at which a path still speeds up the delivery of the waiting packets. Over a path with a
  // longer RTT, these packets would arrive after the other paths have delivered everything.
  int64_t LongestUsefulResponse(int64_t now) const {
    int64_t shortest = std::numeric_limits<int64_t>::max();
    double rate = 0;  // bytes per second
    for (const Path& each : paths) {
      if (each.is_silent) continue;
      shortest = std::min(shortest, ResponseOf(each, now));
      rate += each.rate.rate();
    }
    return shortest + static_cast<int64_t>(1e9 * static_cast<double>(queue.waiting_bytes()) / rate);
  }
  // Returns the RTT of a path, or 0 if the path has not been measured recently. Such a path gets packets.
  static int64_t ResponseOf(const Path& path, int64_t now) {
    constexpr std::chrono::seconds kForget{1};
    return now - path.confirmed_at < std::chrono::nanoseconds(kForget).count() ? path.response : 0;
  }
  // Returns whether a path may get the next packets, once its rate allows it.
  bool IsOpen(size_t number, int64_t longest_useful, int64_t now) const {
    const Path& each = paths[number];
    return !each.is_silent && !each.blocked && queue.has_next(number) && ResponseOf(each, now) <= longest_useful &&
           (paths.size() == 1 || queue.under_way_bytes(number) < MostUnderWay(each));
  }
  // Returns the maximum number of frame bytes in flight on one of several paths: the bytes that its rate sends in about
  // two RTTs. Paths that share a slow link would otherwise fill its queue before their rates follow.
  int64_t MostUnderWay(const Path& each) const {
    constexpr int64_t kSlack = 4000000;  // nanoseconds; also for acknowledgements that wait for more packets
    constexpr int64_t kLeastPackets = 8;
    int64_t round = std::numeric_limits<int64_t>::max();
    for (const Path& other : paths) round = std::min(round, other.rate.shortest().round);
    if (round == std::numeric_limits<int64_t>::max()) round = 0;  // not measured yet
    return std::max(kLeastPackets * path.packet_bytes,
                    static_cast<int64_t>(each.rate.rate() * 1e-9 * static_cast<double>(2 * round + kSlack)));
  }
  // Returns the path with the shortest RTT among the paths that are not silent.
  size_t FastestPath() const {
    size_t fastest = paths.size();
    for (size_t i = 0; i < paths.size(); ++i) {
      if (!paths[i].is_silent && (fastest == paths.size() || paths[i].response < paths[fastest].response)) fastest = i;
    }
    return fastest;
  }
  // Returns the time at which a path may send the next packets, or the maximum value if no path is open.
  int64_t NextBatchAt(int64_t now) const {
    int64_t next = std::numeric_limits<int64_t>::max();
    const int64_t longest_useful = LongestUsefulResponse(now);
    for (size_t i = 0; i < paths.size(); ++i) {
      if (IsOpen(i, longest_useful, now)) next = std::min(next, std::max(paths[i].rate.NextAt(), held_until));
    }
    return next;
  }
  // Returns whether packets are in flight on paths that are not silent.
  bool AwaitsAnswer() const { return under_way() > 0; }
  size_t under_way() const {
    size_t packets = 0;
    for (size_t i = 0; i < paths.size(); ++i) packets += paths[i].is_silent ? 0 : queue.under_way(i);
    return packets;
  }
  // Returns the time at which the next AnswerTimeout ends, or the maximum value if no packet is in flight.
  int64_t NextTimeout() const {
    int64_t next = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < paths.size(); ++i) {
      if (queue.is_under_way(i)) next = std::min(next, paths[i].answered + paths[i].AnswerTimeout());
    }
    return next;
  }

  // Returns whether long packets repeatedly get lost while shorter packets arrive.
  bool loses_long() const { return lost_bytes > 0 && !queue.empty(); }
  void NoteLongLost(const Answered& answered) {
    if (answered.longest_come >= lost_bytes) lost_bytes = 0;
    if (answered.longest_come < answered.often_lost) lost_bytes = answered.often_lost;
  }

  UdpPath path;
  Assembler assembler;
  SendQueue queue;
  std::vector<Path> paths;
  size_t answers_over = 0;     // the path that last carried a repetition or a silent path's acknowledgement
  int users = 0;               // number of threads in system calls on the sockets
  int64_t held_until = 0;      // until this time only probes are sent, because the process has no room
  uint64_t newest_answer = 0;  // the number of the newest acknowledgement
  // The packets that Write is sending.
  TrafficClass traffic_class;
  std::vector<std::byte> bytes;
  std::vector<size_t> sizes;
  std::vector<PacketHeader> headers;
  int64_t confirmed_at = 0;  // time of the last acknowledgement on any path
  // The next three members detect that no path passes UDP packets.
  int64_t unanswered_since = 0;  // time of the last acknowledgement or of the first packet in flight: the later
  bool is_asked = false;         // whether a reply of the process over TCP is due
  int only_here = 0;             // replies over TCP since the last acknowledgement
  // Numbers of packets acknowledged on this path and all previous paths: until now (confirmed), and until the last
  // ProgressTo (reported_confirmed).
  uint64_t confirmed = 0, reported_confirmed = 0;
  uint64_t watched_confirmed = 0;  // `confirmed` at the last search for silent hosts
  uint64_t reported = 0;           // SendProgress::confirmed that ProgressTo last returned
  // Number of frame bytes in a packet that gets lost while shorter packets arrive; 0 if there is no such packet.
  size_t lost_bytes = 0;
  ConnectionWatch watch;
  int64_t forged = 0;
};

inline int64_t Nanoseconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

inline int64_t NowNanoseconds() { return Nanoseconds(std::chrono::steady_clock::now()); }

}  // namespace jaxcomm

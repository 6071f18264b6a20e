// Splits the frames for one process into packets, and keeps each frame until the process has acknowledged the frame.
//
//   queue.Push(header, message);                          // or PushCopy
//   const PacketHeader packet = *queue.Next(now, bytes, &size);   // `bytes`: the payload of the packet to send
//   Result<Answered> answered = queue.Take(answer, bits, &done);  // `done`: the completely acknowledged messages
//
// The acknowledgement of a packet also reports which earlier packets are missing. Missing packets are retransmitted
// with new numbers, unless a lossy message may lose them. Every packet carries the number of messages that have been
// sent completely, counting this packet. Once this number includes a lossy message whose reliable part has arrived, the
// receiver gives up the missing bytes if the message may lose them. Acknowledgements show the loss to the sender. They
// also carry the number of messages that the receiver has finished. The sender sends no more packets of these messages.
//
// Frames have priorities, 0 first. A frame's packets wait while packets of an earlier priority wait. Switches may do
// the same, so a packet is missing only if a later packet of the same or a later priority has arrived.
//
// The packets may take several paths, each with packet numbers of its own. Only later packets of the same path show
// that a packet is missing. A packet does not count a lossy message as sent while bytes of the message are in flight on
// another path, because packets of different paths overtake each other. Functions without a path concern all paths.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/outgoing.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/datagrams.h"
#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/packed.h"
#include "cc/transport/udp/packet.h"

namespace jaxcomm {

// The packets that one acknowledgement reports and that no earlier acknowledgement has reported.
struct Answered {
  int64_t sent = 0;   // when the acknowledgement's newest packet was sent, in nanoseconds; 0 if that is not known
  int64_t bytes = 0;  // number of frame bytes in the packets that arrived
  int64_t packets = 0, lost = 0;  // packets reported, and how many of these are missing
  // `longest_come`: the maximum number of frame bytes in a packet that arrived. `often_lost`: the minimum number of
  // frame bytes in a packet that was lost kOftenLost times. Both are 0 if there is no such packet.
  size_t longest_come = 0, often_lost = 0;
};

class SendQueue {
 public:
  // `fragment`: number of frame bytes in each packet, except that a frame's last packet may hold fewer. `window`:
  // maximum number of frame bytes in flight on each path. `priorities`: at most TrafficClass::kQueues; frames of later
  // priorities get the last one.
  SendQueue(size_t fragment, int64_t window, size_t paths = 1, size_t priorities = 1)
      : fragment_(fragment), window_(window), paths_(paths), waiting_(priorities) {}

  // The payload must stay valid until the process has acknowledged all of it, because retransmissions read it.
  void Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t priority = 0);
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t priority = 0);
  // `important[i]`: whether span i of the message must arrive. Reorders the spans of the message, because important
  // spans are sent first.
  void PushLossy(const MessageId& id, std::vector<bool> important, const LossLimit& limit,
                 std::shared_ptr<Outgoing> message, uint32_t priority = 0);

  // Writes the payload of the next packet, at most `fragment` bytes, to `bytes`. Returns nullopt if nothing waits or if
  // no more packets may be in flight. `now` is in nanoseconds.
  std::optional<PacketHeader> Next(int64_t now, std::byte* bytes, size_t* size, size_t path = 0);
  bool has_next() const;
  bool has_next(size_t path) const;
  // The properties by which switches treat the next packet. `is_important`: the packet must arrive.
  struct NextPacket {
    uint32_t priority = 0;
    bool is_important = true;

    bool operator==(const NextPacket& other) const {
      return priority == other.priority && is_important == other.is_important;
    }
  };
  NextPacket PeekNext() const;
  // Returns the last priority of the packets in flight on a path. A probe with this priority shows all losses.
  uint32_t LastPriority(size_t path = 0) const;
  // Returns a packet without payload that requests an acknowledgement. The packet must be sent with this priority.
  PacketHeader Probe(int64_t now, size_t path, uint32_t priority);
  // Takes back the newest `count` packets that Next returned for the path, because they could not be sent.
  void Unsend(size_t count, size_t path = 0);

  Result<Answered> Take(const PacketHeader& answer, const std::byte* bits, std::vector<std::shared_ptr<Outgoing>>* done,
                        size_t path = 0);
  // Counts all packets in flight on a path as lost, so that other paths retransmit them.
  void GiveUp(size_t path, std::vector<std::shared_ptr<Outgoing>>* done);

  // Removes the call's messages. If a message is partly sent, copies its bytes instead, and still sends all of them.
  void Cancel(const CallId& call);
  // Removes all frames. Returns the messages that were not completely acknowledged.
  std::vector<std::shared_ptr<Outgoing>> Clear();

  bool empty() const { return !is_waiting() && frames_[0].empty() && frames_[1].empty(); }
  bool is_under_way(size_t path = 0) const { return paths_[path].packets_under_way > 0; }
  size_t under_way(size_t path = 0) const { return paths_[path].packets_under_way; }   // packets in flight
  int64_t under_way_bytes(size_t path) const { return paths_[path].under_way_bytes; }  // frame bytes in flight
  int64_t waiting_bytes() const;                                                       // frame bytes to send
  // Returns whether nothing is left to send and the path's last packet belongs to a message that was not copied. In
  // that case the caller sends a probe, for two reasons. Only a later packet can show that the last packet is lost. A
  // later packet also reports that the whole of a lossy message was sent.
  bool ends_message(size_t path = 0) const { return paths_[path].ends_message && !is_waiting(); }
  // Returns the priority of a probe that the caller must send, on any path, to report that the whole of a lossy message
  // was sent: no packet of this or an earlier priority will report it. Always nullopt with one path and one priority.
  std::optional<uint32_t> OwedProbe() const;
  // Returns whether, at some time since the path's last packet was sent, nothing waited to be sent, and no packet of
  // the path was in flight.
  bool has_paused(size_t path = 0) const { return paths_[path].has_paused; }
  size_t copied_bytes() const { return copied_bytes_; }

 private:
  // The bytes of a frame are `own`, followed by the spans of `message`.
  struct Frame {
    Header header;
    std::vector<std::byte> own;
    std::shared_ptr<Outgoing> message;
    uint32_t priority;
    uint32_t bytes;
    uint64_t number = 0;    // set when the frame's first packet is sent
    uint32_t sent = 0;      // number of bytes sent at least once
    uint32_t missing = 0;   // number of fragments neither acknowledged nor given up
    uint32_t reliable;      // number of leading bytes that must arrive
    uint32_t may_lose = 0;  // number of bytes after the reliable bytes that may still be lost
    bool is_lossy = false;
    bool has_time_limit = false;  // lost packets are retransmitted; see LossLimit
    bool is_over = false;         // the whole frame is acknowledged or given up
    bool has_lost = false;        // some of the bytes have been given up
    PackedCursor cursor;
  };
  // A packet that is in flight, lost or taken back. The packet of a probe has no frame.
  struct Fragment {
    std::shared_ptr<Frame> frame;
    uint32_t priority = 0;
    uint32_t offset = 0;
    int64_t sent = 0;
    int losses = 0;
    bool is_over = false;    // acknowledged or lost, while an earlier packet is in flight
    bool is_unsent = false;  // Unsend took the packet back
  };
  // The frames and packets of one priority that wait to be sent.
  struct Waiting {
    std::deque<std::shared_ptr<Frame>> unsent;  // the first frame may be partly sent
    std::deque<Fragment> lost;
    int64_t bytes = 0;  // number of bytes in `lost`, and of bytes in `unsent` that have not been sent
    // Number of completely sent messages that a probe must report; 0 if there is nothing to report.
    uint64_t owed = 0;

    bool has_frames() const { return !lost.empty() || !unsent.empty(); }
  };
  struct Path {
    std::deque<Fragment> under_way;  // in the order of packet numbers, which begin with `oldest`
    uint64_t oldest = 0;
    size_t packets_under_way = 0;
    std::array<uint64_t, TrafficClass::kQueues> arrived =
        {};  // by priority: the newest number that has arrived, plus 1
    int64_t under_way_bytes = 0;
    int64_t lossy_under_way = 0;  // packets of lossy messages
    uint64_t newest_answer = 0;
    bool ends_message = false, has_paused = true;
  };

  static constexpr size_t kNoPath = SIZE_MAX;

  // A packet in flight that this number of later packets have overtaken counts as lost. Acknowledgements report the
  // newest kAnsweredPackets packets only.
  static constexpr uint64_t kMostOvertaking = kAnsweredPackets * 3 / 4;
  static constexpr int kOftenLost = 8;  // if 20 % of packets get lost at random, 3 in a million get lost this often

  // Returns the index of the frame's kind in frames_ and next_frame_.
  static size_t KindOf(const Frame& frame) { return frame.header.type == FrameType::kMessage ? 0 : 1; }
  bool MayBegin(const Frame& frame) const;
  bool MayLose(const Frame& frame, uint32_t offset) const;
  static bool IsOvertaken(const Path& path, uint64_t number, uint32_t priority);
  bool IsHeldUp(const Frame& frame) const;
  // Returns whether the packet's bytes must still arrive.
  static bool IsLeft(const Fragment& fragment) { return fragment.frame && !fragment.frame->is_over; }
  bool is_waiting() const;
  const Waiting* FindNext() const;
  uint64_t SentWhole(size_t path, uint32_t priority) const;
  void Depart(Path& path, Fragment fragment);
  Fragment Resolve(Path& path, Fragment& fragment);
  Fragment TakeOldest(Path& path);
  void Add(std::shared_ptr<Frame> frame, uint32_t priority);
  void Wait(Fragment fragment, bool is_first);
  void NotePauses();
  size_t Size(const Frame& frame, uint32_t offset) const;
  size_t Size(const Fragment& fragment) const;
  static void Read(Frame& frame, uint32_t offset, size_t size, std::byte* out);
  void Come(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done);
  void End(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done);
  void EndBefore(uint64_t number, std::vector<std::shared_ptr<Outgoing>>* done);
  bool TakeLoss(const Fragment& fragment, std::vector<std::shared_ptr<Outgoing>>* done);
  void Detach(Frame& frame, const CallId& call);

  size_t fragment_;
  int64_t window_;
  std::vector<Path> paths_;
  std::vector<Waiting> waiting_;  // by priority
  // Numbers of the frames that are begun but not acknowledged: [0] for messages, [1] for other frames.
  std::set<uint64_t> frames_[2];
  uint64_t next_frame_[2] = {0, 0};
  size_t copied_bytes_ = 0;
};

}  // namespace jaxcomm

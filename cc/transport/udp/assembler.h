// Reassembles the frames of one process from packets that arrive in any order, some of them twice.
//
//   Status status = assembler.Take(header, bytes, size, arrived);   // a packet that OpenPacket accepted
//   if (assembler.owes_answer()) ... assembler.Answer(now, &header, bits) ...
//
// The first packet of a message contains the message id. Bytes that arrive after the first packet go straight into the
// message's spans. Bytes that arrive before the first packet are kept until it arrives. A lossy message ends when its
// reliable part has arrived, at most `may_lose` bytes are missing, and a packet reports that the whole message was
// sent. A lossy message with a time limit (LossLimit) ends instead when its reliable part has arrived, the limit has
// passed, and the spans that lack bytes have at most `may_lose` bytes. The missing bytes are then zeroed, and later
// packets of the message are dropped. An error text completes the sentence "process n has been cut off: it sent ...".
// After an error, no more packets of the process may be taken. Memory is bounded: a packet for which there is no room
// is not taken, and the process retransmits the packet. The packets of a process may arrive over several paths, each
// with packet numbers and acknowledgements of its own. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/inbox.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/packed.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/replay_window.h"

namespace jaxcomm {

class Assembler {
 public:
  // The maximum number of kept bytes. Bytes are kept for messages whose first packet is missing, and for notices that
  // wait for an earlier notice.
  static constexpr int64_t kMaxKept = int64_t{8} << 20;

  // `fragment`: number of frame bytes in each packet, at least kHeaderBytes. A frame's last packet may hold fewer.
  Assembler(uint32_t process, size_t fragment, Inbox* inbox, size_t paths = 1)
      : process_(process), fragment_(fragment), inbox_(inbox), paths_(paths) {}

  // `arrived`: when the packet arrived. Like `now` in Answer, it is in nanoseconds of WallClock().
  Status Take(const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived, size_t path = 0);

  // owes_answer: whether packets have arrived since the last acknowledgement. owes_answer_now: whether kUnanswered
  // packets have arrived since the last acknowledgement, or one packet that requests an acknowledgement at once.
  bool owes_answer(size_t path = 0) const { return paths_[path].unanswered > 0; }
  bool owes_answer_now(size_t path = 0) const {
    return paths_[path].is_asked || paths_[path].unanswered >= kUnanswered;
  }
  void Answer(int64_t now, PacketHeader* header, std::byte (&bits)[kAnswerBytes], size_t path = 0);

  // NextTimeLimit returns the earliest time limit of the messages that are arriving. Expire ends the messages whose
  // time limits have passed, if enough of each has arrived, and makes an acknowledgement due at once.
  std::optional<LossLimit::TimePoint> NextTimeLimit() const;
  void Expire(LossLimit::TimePoint now);

  // Returns whether a message arrived before its Post and found no room.
  bool waits() const { return waits_; }
  // Makes an acknowledgement due, which shows the process that there may be room again. Returns the path of the
  // acknowledgement.
  size_t Resume();

  bool at_end() const { return at_end_; }  // the goodbye has arrived
  int64_t duplicates() const { return duplicates_; }
  int64_t kept() const { return kept_; }  // number of bytes kept

  // From now on, drops the arriving bytes of the call's messages.
  void Cancel(const CallId& call);
  std::vector<Incoming> TakeArrivals();

 private:
  struct Arrival {
    uint32_t bytes = 0;
    std::vector<bool> has;      // `has[i]`: whether fragment i has arrived
    size_t missing = 0;         // number of reliable fragments that have not arrived
    int64_t missing_bytes = 0;  // number of bytes in the fragments that have not arrived
    uint32_t reliable = 0;      // number of leading bytes that must arrive
    uint32_t may_lose = 0;
    bool is_lossy = false;
    std::optional<LossLimit::TimePoint> until;  // the time limit
    bool is_expired = false;                    // the time limit has passed, and Expire has seen it
    uint32_t front = kHeaderBytes;              // number of frame bytes before the payload
    std::optional<Incoming> message;
    std::unique_ptr<std::byte[]> kept;  // the kept bytes; null if the bytes go straight into spans
    PackedCursor cursor;
  };
  // The frames of one kind: either the messages, or the notices and the goodbye.
  struct Stream {
    uint64_t oldest = 0;  // number of the oldest incomplete frame
    std::set<uint64_t> whole;
    std::map<uint64_t, Arrival> arrivals;
    uint64_t sent = 0;  // number of messages that the process has sent completely
  };

  struct Path {
    ReplayWindow window;
    int unanswered = 0;  // packets since the last acknowledgement
    bool is_asked = false;
    int64_t newest_arrived = 0;
  };

  static constexpr int kUnanswered = 16;

  Status Check(const PacketHeader& header, size_t size) const;
  Result<bool> TakeFragment(const PacketHeader& header, const std::byte* bytes, size_t size);
  Result<bool> Name(const PacketHeader& header, const std::byte* bytes, size_t size, Arrival& arrival);
  Status BeginLossy(const Header& frame, const std::byte* bytes, size_t size, Arrival& arrival);
  void See(uint16_t sent);
  bool IsOver(uint64_t frame, const Arrival& arrival) const;
  std::vector<Span> BrokenSpans(const Arrival& arrival) const;
  void Lose(Arrival& arrival);
  size_t Ask();
  bool Keep(const PacketHeader& header, Arrival& arrival);
  void Place(Arrival& arrival, uint32_t offset, const std::byte* bytes, size_t size);
  void Finish(uint64_t frame);
  Status DeliverOrdered();

  uint32_t process_;
  size_t fragment_;
  Inbox* inbox_;
  std::vector<Path> paths_;
  size_t newest_path_ = 0;  // the path over which the newest packet arrived
  Stream messages_, ordered_;
  int64_t kept_ = 0;  // number of bytes kept
  bool waits_ = false, at_end_ = false;
  bool has_time_limits_ = false;  // some arrival may have a time limit that has not passed
  uint64_t answers_ = 0;          // acknowledgements of all paths, because any path may carry one
  int64_t duplicates_ = 0;
};

}  // namespace jaxcomm

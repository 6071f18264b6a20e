// Puts the frames that one process sends together, from packets in any order, some of them twice.
//
//   Status status = assembler.Take(header, bytes, size, arrived);   // a packet that OpenPacket has let in
//   if (assembler.owes_answer()) ... assembler.Answer(now, &header, bits) ...
//
// The bytes of a message go straight into its spans as soon as the packet has come that names it; until then they are
// kept. A lossy message is over when its reliable part has come, and a packet that was sent after the whole message:
// the missing bytes are zeros then, and later packets of it are dropped. An error names the mistake of the process, in
// words that follow "it sent"; nothing more may be taken from it. Memory is bounded: a packet without room is not
// taken, and the process sends it again. Not thread-safe.
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
#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/packed.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/replay_window.h"

namespace jaxcomm {

class Assembler {
 public:
  // Bytes of messages that are not named yet, and of notices behind one that is not whole.
  static constexpr int64_t kMaxKept = int64_t{8} << 20;

  // `fragment`: bytes of a frame that each of its packets carries, but the last; no less than kHeaderBytes.
  Assembler(uint32_t process, size_t fragment, Inbox* inbox) : process_(process), fragment_(fragment), inbox_(inbox) {}

  // `arrived`: when, in nanoseconds of the clock that Answer is given.
  Status Take(const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);

  // Whether packets have come since the last answer; whether enough have, or one that asks for it.
  bool owes_answer() const { return unanswered_ > 0; }
  bool owes_answer_now() const { return is_asked_ || unanswered_ >= kUnanswered; }
  void Answer(int64_t now, PacketHeader* header, std::byte (&bits)[kAnswerBytes]);

  // A message found no room among those that came early.
  bool waits() const { return waits_; }
  // There may be room now: asks for an answer that says so.
  void Resume();

  bool at_end() const { return at_end_; }  // the goodbye has come
  int64_t duplicates() const { return duplicates_; }
  int64_t kept() const { return kept_; }  // bytes

  // The missing bytes of messages of this call are dropped.
  void Cancel(const CallId& call);
  std::vector<Incoming> TakeArrivals();

 private:
  struct Arrival {
    uint32_t bytes = 0;
    std::vector<bool> has;      // by fragment
    size_t missing = 0;         // fragments that must come
    int64_t missing_bytes = 0;  // of all
    uint32_t reliable = 0;      // bytes that must come, from the first one on
    uint32_t may_lose = 0;
    bool is_lossy = false;
    uint32_t front = kHeaderBytes;  // bytes before the message's own
    std::optional<Incoming> message;
    std::unique_ptr<std::byte[]> kept;  // the frame so far; null: it goes to the message's spans
    PackedCursor cursor;
  };
  // The frames of one kind.
  struct Stream {
    uint64_t oldest = 0;  // that is not whole
    std::set<uint64_t> whole;
    std::map<uint64_t, Arrival> arrivals;
    uint64_t sent = 0;  // frames that were sent whole
  };

  static constexpr int kUnanswered = 16;

  Status Check(const PacketHeader& header, size_t size) const;
  Result<bool> TakeFragment(const PacketHeader& header, const std::byte* bytes, size_t size);
  Result<bool> Name(const PacketHeader& header, const std::byte* bytes, size_t size, Arrival& arrival);
  Status BeginLossy(const Header& frame, const std::byte* bytes, size_t size, Arrival& arrival);
  void See(uint16_t sent);
  bool IsOver(uint64_t frame, const Arrival& arrival) const;
  void Lose(Arrival& arrival);
  bool Keep(const PacketHeader& header, Arrival& arrival);
  void Place(Arrival& arrival, uint32_t offset, const std::byte* bytes, size_t size);
  void Finish(uint64_t frame);
  Status DeliverOrdered();

  uint32_t process_;
  size_t fragment_;
  Inbox* inbox_;
  ReplayWindow window_;
  Stream messages_, ordered_;
  int64_t kept_ = 0;  // bytes
  int unanswered_ = 0;
  bool is_asked_ = false, waits_ = false, at_end_ = false;
  uint64_t answers_ = 0;
  int64_t newest_arrived_ = 0, duplicates_ = 0;
};

}  // namespace jaxcomm

// The frames for one process, in packets, until the process has confirmed them.
//
//   queue.Push(header, message);                          // or PushCopy
//   const PacketHeader packet = *queue.Next(now, bytes, &size);   // the next one's bytes, to be sealed and sent
//   Result<Answered> answered = queue.Take(answer, bits, &done);  // `done`: the messages that have come whole
//
// Packets that were sent before a confirmed one, and have not come, go out again, with new numbers: of a lossy message
// only the reliable part. Every packet bears the number of messages that had been sent whole before it: once the
// receiver has the reliable part of a lossy message, and a packet that was sent after the whole of it, both sides know
// that the rest will not come. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/outgoing.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/lossy_frame.h"
#include "cc/transport/udp/packed.h"
#include "cc/transport/udp/packet.h"

namespace jaxcomm {

// The result of an answer about the packets under way.
struct Answered {
  int64_t sent = 0;               // when the newest was, in nanoseconds; 0: the answer is older than one before
  int64_t bytes = 0;              // that have come
  int64_t packets = 0, lost = 0;  // of all packets in the answer
  // Bytes of a frame in a packet: the most of those that have come, and the fewest of those that have been lost
  // kOftenLost times; 0: none.
  size_t longest_come = 0, often_lost = 0;
};

class SendQueue {
 public:
  // `fragment`: bytes of a frame in each of its packets, but the last. `window`: bytes that may be under way.
  SendQueue(size_t fragment, int64_t window) : fragment_(fragment), window_(window) {}

  // The payload is read until it has come, and must stay until then.
  void Push(const Header& header, std::shared_ptr<Outgoing> message);
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload);
  // `important`: by span of the message's, which this puts in the order in which they are sent.
  void PushLossy(const MessageId& id, std::vector<bool> important, uint32_t may_lose,
                 std::shared_ptr<Outgoing> message);

  // Writes up to a fragment to `bytes`; none: nothing waits, or no more may be under way. `now`: in nanoseconds.
  std::optional<PacketHeader> Next(int64_t now, std::byte* bytes, size_t* size);
  bool has_next() const;
  // Whether the next packet must come.
  bool IsNextImportant() const;
  // A packet of no frame, so that there is an answer.
  PacketHeader Probe(int64_t now);
  // The newest packets have not been sent after all.
  void Unsend(size_t count);

  Result<Answered> Take(const PacketHeader& answer, const std::byte* bits,
                        std::vector<std::shared_ptr<Outgoing>>* done);

  // Takes messages of the call away. A message that has begun to go out is copied, and goes on.
  void Cancel(const CallId& call);
  // Takes everything away: the messages that will never come whole.
  std::vector<std::shared_ptr<Outgoing>> Clear();

  bool empty() const { return unsent_.empty() && frames_[0].empty() && frames_[1].empty(); }
  bool is_under_way() const { return !under_way_.empty(); }
  size_t under_way() const { return under_way_.size(); }  // packets
  // Whether no packet is left to send, and a message waits for the last one: only a packet behind it shows that it has
  // been lost, and of a lossy message, that all of it has been sent.
  bool ends_message() const { return ends_message_ && lost_.empty() && unsent_.empty(); }
  // There was nothing to send or to answer before the next packet.
  bool has_paused() const { return has_paused_; }
  size_t copied_bytes() const { return copied_bytes_; }

 private:
  // First `own`, then the bytes of `message`.
  struct Frame {
    Header header;
    std::vector<std::byte> own;
    std::shared_ptr<Outgoing> message;
    uint32_t bytes;
    uint64_t number = 0;    // once it has been begun
    uint32_t sent = 0;      // bytes, for the first time
    uint32_t missing = 0;   // fragments that have not come and are not given up
    uint32_t reliable;      // bytes that must come
    uint32_t may_lose = 0;  // bytes of the others, still
    bool is_lossy = false;
    PackedCursor cursor;
  };
  // A packet that is under way; of no frame: a probe.
  struct Fragment {
    std::shared_ptr<Frame> frame;
    uint32_t offset = 0;
    int64_t sent = 0;
    int losses = 0;
    bool is_unsent = false;  // it was about to be
  };

  static constexpr int kOftenLost = 8;  // by chance where a fifth of all packets is lost: 3 of a million

  // Of frames_ and next_frame_.
  static size_t KindOf(const Frame& frame) { return frame.header.type == FrameType::kMessage ? 0 : 1; }
  bool MayBegin(const Frame& frame) const;
  bool MayLose(const Fragment& fragment) const;
  uint16_t SentWhole() const;
  size_t Size(const Fragment& fragment) const;
  static void Read(Frame& frame, uint32_t offset, size_t size, std::byte* out);
  void Come(Frame& frame, std::vector<std::shared_ptr<Outgoing>>* done);
  void Detach(Frame& frame, const CallId& call);

  size_t fragment_;
  int64_t window_;
  std::deque<std::shared_ptr<Frame>> unsent_;  // of the first a part may have been sent
  std::deque<Fragment> lost_;
  std::deque<Fragment> under_way_;  // by number, from oldest_
  uint64_t oldest_ = 0;
  int64_t under_way_bytes_ = 0;
  uint64_t newest_answer_ = 0;
  bool ends_message_ = false, has_paused_ = true;
  std::set<uint64_t> frames_[2];  // numbers of those begun and not whole: messages; others
  uint64_t next_frame_[2] = {0, 0};
  size_t copied_bytes_ = 0;
};

}  // namespace jaxcomm

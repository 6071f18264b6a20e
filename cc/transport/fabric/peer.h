// The state of FabricTransport for one other process.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/fabric/arena.h"
#include "cc/transport/fabric/fabric_transport.h"
#include "cc/transport/fabric/head.h"
#include "cc/transport/socket.h"

namespace jaxcomm {

// The bytes that the two sides send over the connection beside a path. kExpects: the sender receives frames of the path
// from now on. kHere answers kAsk.
constexpr std::byte kExpects{'+'}, kAsk{'?'}, kHere{'!'};

struct FabricTransport::Peer : SocketPeer {
  // A queued frame. If `message` is null, the payload is in `copy`.
  struct Frame {
    Header header;
    std::vector<std::byte> copy;
    std::shared_ptr<Outgoing> message;
  };
  // The frames of one size. The counts start at 0 with each path and are modulo 2^32.
  struct Lane {
    std::deque<Frame> frames;
    uint32_t sent = 0, freed_there = 0;  // numbers of frames that this side sent, and that the process has freed since
    // Numbers of the process's frames: that arrived, that this side freed, and that it reported as freed.
    uint32_t arrived = 0, freed = 0, reported = 0;
  };

  using SocketPeer::SocketPeer;

  void Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t /*priority*/) override {
    LaneOf(header).frames.push_back({header, {}, std::move(message)});
  }
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t /*priority*/) override {
    std::vector<std::byte> copy;
    for (const ConstSpan& span : payload) copy.insert(copy.end(), span.data, span.data + span.bytes);
    copied += copy.size();
    LaneOf(header).frames.push_back({header, std::move(copy), nullptr});
  }
  size_t copied_bytes() const override { return copied; }
  bool waits() const override { return !waiting.empty(); }

  // Starts a path. The previous path has ended.
  void Restart(const FabricPath& its, fi_addr_t to, uint64_t number) {
    path = its;
    address = to;
    path_number = number;
    lanes = {};
    copied = 0;
    next = arrived_there = reported_arrived = asked = answered = looked_arrived = 0;
    unreported_since = {};
    is_asked = is_expected = left = false;
    silent_looks = 0;
    watch = ConnectionWatch();
    gone = Status();
  }

  // Removes the queued messages of the call.
  void Cancel(const CallId& call) {
    for (Lane& lane : lanes) {
      const auto is_cancelled = [&](const Frame& frame) {
        return frame.header.type == FrameType::kMessage && frame.header.id.call == call;
      };
      for (const Frame& frame : lane.frames) copied -= is_cancelled(frame) ? frame.copy.size() : 0;
      lane.frames.erase(std::remove_if(lane.frames.begin(), lane.frames.end(), is_cancelled), lane.frames.end());
    }
  }

  Lane& LaneOf(const Header& header) { return lanes[header.bytes > Transport::kMaxNotice ? kLarge : kSmall]; }
  uint32_t sent() const { return lanes[kSmall].sent + lanes[kLarge].sent; }
  uint32_t arrived() const { return lanes[kSmall].arrived + lanes[kLarge].arrived; }
  // Returns whether frames are queued, or the process has not yet freed the slots of all sent frames.
  bool has_frames() const {
    for (const Lane& lane : lanes) {
      if (!lane.frames.empty() || lane.sent != lane.freed_there) return true;
    }
    return false;
  }
  bool owes_report() const {
    return arrived() != reported_arrived || lanes[kSmall].freed != lanes[kSmall].reported ||
           lanes[kLarge].freed != lanes[kLarge].reported;
  }
  // Returns the number of frames that the process has not acknowledged, although it has answered a question that was
  // sent after these frames. A stopped process answers no questions, so the frames sent to it do not count.
  uint32_t unanswered() const {
    const auto missing = static_cast<int32_t>(answered - arrived_there);
    return missing > 0 ? static_cast<uint32_t>(missing) : 0;
  }

  FabricPath path;
  fi_addr_t address = FI_ADDR_UNSPEC;
  uint64_t path_number = 0;
  std::array<Lane, kFrameSizes> lanes;
  size_t copied = 0;
  uint32_t next = 0;                // number of the small frame that is delivered next
  std::map<uint32_t, Slot*> ahead;  // later small frames that have already arrived, by number
  std::deque<Slot*> waiting;        // frames that wait because early messages leave no room for them
  uint32_t arrived_there = 0;       // number of own frames that have arrived at the process
  uint64_t confirmed = 0;           // arrived_there, summed over this path and all previous paths
  uint32_t reported_arrived = 0;    // number of arrived frames that this side has acknowledged
  Clock::time_point unreported_since;
  bool is_expected = false;  // whether the process receives frames of this path yet; if not, it would drop them
  // is_asked: whether a question over the connection has no answer yet. asked and answered: the numbers of frames that
  // were sent before the latest question, and before the latest answered question.
  bool is_asked = false;
  uint32_t asked = 0, answered = 0;
  uint32_t looked_arrived = 0;  // value of arrived_there at the last search for silent hosts
  ConnectionWatch watch;
  int64_t forged = 0;
};

}  // namespace jaxcomm

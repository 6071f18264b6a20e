// Moves messages between this process and the other processes of its job, over one kind of connection.
//
//   transport.Notify(process, text);                                // a few bytes about a call, in order
//   transport.Post(process, id, spans, /*accepts_view=*/true, done);  // gives memory for an expected message
//   transport.Send({{process, id}}, spans, done);                   // sends the same bytes to each receiver
//   transport.Flush();                                              // sends the queued notices and messages
//
// Thread-safe. Only Help, Cancel, Transfers::Take and the functions Finish block. A callback runs once, on a thread of
// the transport or inside the function to which it was passed. The callback may call the transport. It must not block,
// and must not take a lock that a caller of the transport holds.
//
// The bytes of a message go only into spans that were posted under the message's id, and only if both sides agree on
// the size. A peer that disagrees on the size is cut off. A message that arrives before its Post is kept. If the kept
// messages from a process exceed kMaxEarlyBytes, the transport reads nothing from that process until a message is
// posted. Callers therefore send a large message only after the receiver has announced its Post. After Cancel no byte
// of the call is read or stored.
//
// Two more interfaces exist: LossyTransport for transports that can lose part of a message, and RailTransport for
// transports that can be one of several rails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// Identifies one execution of one collective. All processes give the execution the same id.
struct CallId {
  uint64_t communicator = 0;  // identifies the groups of devices in the call
  uint32_t launch = 0;        // number of earlier launches with calls on the communicator, equal in all processes
  uint32_t site = 0;          // index among the launch's calls on the communicator
  uint32_t iteration = 0;     // number of earlier executions of the site in the launch; 0 outside loops

  bool operator==(const CallId& other) const {
    return std::tie(communicator, launch, site, iteration) ==
           std::tie(other.communicator, other.launch, other.site, other.iteration);
  }
  bool operator<(const CallId& other) const {
    return std::tie(communicator, launch, site, iteration) <
           std::tie(other.communicator, other.launch, other.site, other.iteration);
  }
};

// The id of a segment of the index-th message from rank `from` to rank `to` in a call. Both ranks list these messages
// in the same order.
struct MessageId {
  CallId call;
  uint32_t from = 0, to = 0;
  uint32_t index = 0;
  uint32_t segment = 0;
  int64_t call_bytes = 0;  // bytes that each rank contributes to the call; not part of the id

  bool operator==(const MessageId& other) const {
    return std::tie(call, from, to, index, segment) ==
           std::tie(other.call, other.from, other.to, other.index, other.segment);
  }
  bool operator<(const MessageId& other) const {
    return std::tie(call, from, to, index, segment) <
           std::tie(other.call, other.from, other.to, other.index, other.segment);
  }
};

// Memory that holds the bytes [at, at + bytes) of a message. A message's spans are in ascending order. The gaps between
// spans are not sent.
template <typename Byte>
struct BasicSpan {
  Byte* data = nullptr;
  int64_t bytes = 0;
  int64_t at = 0;
};
using Span = BasicSpan<std::byte>;
using ConstSpan = BasicSpan<const std::byte>;

constexpr uint32_t kLastPriority = UINT32_MAX;

struct Receiver {
  uint32_t process;
  MessageId id;
  // Messages of priority 0 are sent first. If a transport has fewer priorities, the message gets the transport's last
  // priority. Most transports have only one.
  uint32_t priority = kLastPriority;
};

// Reports that a message has arrived. If `view` is null, the bytes are in the posted spans. Otherwise byte `at` of the
// message is at view.get() + at, in memory of the transport that stays valid while the view is held. Only a Post that
// accepts a view may get a view. A held view may block the sender, so release the view soon; see Transport::MayKeep.
using Received = std::function<void(const Status&, std::shared_ptr<const std::byte> view)>;

// Reports that the spans may be reused, because the message has been copied or sent. The status is an error if a
// receiving process has ended.
using Sent = std::function<void(const Status&)>;

// The bytes that the ranks of an exchange read.
enum class ReadPattern {
  kAll,            // each rank reads the bytes of all ranks
  kSpanPerReader,  // each rank has one span for each other rank, in rank order, and reads the spans that the other
                   // ranks have for it; all spans have the same size, and are at the same offsets on all ranks
};

// One process's part in an exchange. In an exchange, the processes of a group read each other's bytes.
struct Exchange {
  CallId call;
  const std::vector<uint32_t>& processes;  // the processes of the group, by rank; must outlive the exchange
  size_t rank;                             // the rank of this process
  uint64_t fingerprint;                    // must be equal on all ranks
  std::vector<ConstSpan> spans;
  std::chrono::steady_clock::time_point at;  // time at which this rank arrived
  // false: the bytes are copied, and at most kMaxExchanged are allowed. true: the other processes may read the bytes in
  // place. The bytes may then have any size, and must not change before Finish returns. Except with kSpanPerReader,
  // they must be in one span.
  bool in_place = false;
  ReadPattern reads = ReadPattern::kAll;
};

// Copies bytes of another process's memory.
class MemoryReader {
 public:
  virtual ~MemoryReader() = default;
  // Returns false if the memory cannot be read. In that case the bytes at `to` are undefined.
  virtual bool Read(const std::byte* from, std::byte* to, int64_t bytes) const = 0;
};

// The bytes of one rank. Byte i is at the address bytes + i. If `reader` is null, the bytes are in this process.
// Otherwise the bytes are in another process, and only `reader` can read them. With kSpanPerReader, these are only the
// bytes that the rank has for this rank, and there are none from this rank to itself.
struct Exchanged {
  const std::byte* bytes;
  int64_t size;
  std::chrono::steady_clock::time_point at;
  const MemoryReader* reader = nullptr;

  // Copies the bytes [from, from + count). Returns false if the rank has fewer bytes, or if its memory cannot be read.
  bool CopyTo(std::byte* to, int64_t from, int64_t count) const;
};

// Receives the bytes of all ranks, by rank. Returns false if the bytes of a rank could not be read. Must not throw.
using TakeExchanged = std::function<bool(const std::vector<Exchanged>&)>;

// The limits of a wait for other ranks.
struct WaitLimits {
  std::chrono::nanoseconds arrivals;  // maximum time from the start of the wait until all ranks have joined
  std::chrono::nanoseconds end;       // maximum time from this rank's arrival until all ranks have read the bytes
};

// An exchange that this process has joined. The exchange succeeds on all ranks or fails on all ranks. If the object is
// destroyed before Finish, the exchange fails.
class PendingExchange {
 public:
  virtual ~PendingExchange() = default;
  // Waits until all ranks have joined, and passes their bytes to `take`. Then waits until no other rank needs this
  // rank's spans. Returns false if a limit passed, a rank could not join, `take` failed on a rank, or the ranks joined
  // with different calls. In that case the results of `take` are invalid, and the call may run with messages instead.
  // Must be called at most once.
  virtual bool Finish(const WaitLimits& limits, const TakeExchanged& take) = 0;
};

class LossyTransport;
class Transfers;

class Transport {
 public:
  static constexpr size_t kMaxNotice = 20 << 10;              // bytes
  static constexpr int64_t kMaxMessage = int64_t{256} << 10;  // maximum number of bytes in a segment, gaps included
  static constexpr int64_t kMaxEarlyBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxSmall = 16 << 10;  // bytes; rails deliver messages up to this size in order with notices
  static constexpr int64_t kMaxExchanged = 64 << 10;

  // The events of a transport. They run under the same rules as callbacks.
  class Events {
   public:
    virtual ~Events() = default;
    // A notice has arrived. The notices of one process arrive in the order in which they were sent. A message may
    // arrive before notices that its process sent earlier.
    virtual void OnNotice(uint32_t process, std::string_view notice) = 0;
    // Nothing more will arrive from the process. `why` is the reason, in words for the user. Runs once per process,
    // after all notices and messages that arrived from the process. Posts of messages that have already arrived still
    // succeed. All other Posts and Sends for the process fail. Most of these failures are reported after this event.
    virtual void OnPeerGone(uint32_t process, const Status& why) = 0;
    // Runs instead of OnPeerGone if the process left deliberately. Some transports also run OnPeerLeft for every other
    // process when this process leaves.
    virtual void OnPeerLeft(uint32_t process, const Status& why) { OnPeerGone(process, why); }
    // One of several rails to the process has been fenced, or is open again.
    virtual void OnRail(uint32_t /*process*/, uint32_t /*rail*/, bool /*is_open*/) {}
  };

  virtual ~Transport() = default;

  virtual void Notify(uint32_t process, std::string_view notice) = 0;
  virtual void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                    Received done) = 0;
  virtual void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) = 0;
  // Sends the spans as Send does. Returns true if the transport keeps a copy. In that case the caller may change the
  // spans at once, even before `done` runs.
  virtual bool SendCopy(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) {
    Send(to, std::move(spans), std::move(done));
    return false;
  }
  virtual void Flush() = 0;

  // Returns whether the caller may keep a view that has just arrived from the process while waiting for other messages.
  // If not, the caller must use the view, or copy its bytes, and then release it at once: the other messages may need
  // the memory of the view.
  virtual bool MayKeep(uint32_t /*process*/) { return true; }

  // Ends the call in this process. Callbacks that have not begun never run, and bytes that still arrive are dropped.
  // Waits until no copy of the call's bytes is in progress, but never waits for another process. A callback of the call
  // must not call Cancel for the call.
  virtual void Cancel(const CallId& call) = 0;

  // Returns nullptr if this transport loses no part of a message.
  virtual LossyTransport* lossy() { return nullptr; }

  // Joins an exchange, without waiting for the other ranks. If this process cannot join, returns null, and the exchange
  // fails on all ranks. The transport must outlive the result.
  virtual std::unique_ptr<PendingExchange> Join(Exchange /*mine*/) { return nullptr; }

  // Transfers to and from another process (transfers.h). Returns null if the processes can only send messages.
  virtual Transfers* transfers(uint32_t /*process*/) { return nullptr; }

  // A thread calls Expect when it starts to wait for the messages of a call, and EndExpecting when it stops. For one
  // call, EndExpecting may run before Expect.
  virtual void Expect() {}
  virtual void EndExpecting() {}

  // Flushes. May also receive messages on the calling thread, which saves the wake-up of a transport thread. Receives
  // until `over` returns true or the limit has passed, and calls `over` after each poll. Messages to a process in which
  // no thread waits may be held back until the limit or the next Flush. `yields`: before the calling thread sleeps, it
  // polls for a while and yields its processor to other threads. Must not be called from a callback.
  virtual void Help(std::chrono::nanoseconds /*limit*/, bool /*yields*/, const std::function<bool()>& /*over*/) {
    Flush();
  }
};

inline bool Exchanged::CopyTo(std::byte* to, int64_t from, int64_t count) const {
  if (from + count > size) return false;
  if (reader != nullptr) return reader->Read(bytes + from, to, count);
  std::memcpy(to, bytes + from, static_cast<size_t>(count));
  return true;
}

}  // namespace jaxcomm

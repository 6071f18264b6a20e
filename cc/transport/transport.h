// Moves messages between this process and the others of its job, over one kind of connection.
//
//   transport.Notify(process, text);                                // a few bytes about a call, in order
//   transport.Post(process, id, spans, /*accepts_view=*/true, done);  // where a message that is expected may go
//   transport.Send({{process, id}}, spans, done);                   // the same bytes to each receiver
//   transport.Flush();                                              // the messages that the three have queued go out
//
// Nothing here blocks, and everything may be called from any thread. A callback runs once, on a thread of the transport
// or inside the function that it was given to; it must not block, and may call the transport. So no lock that it takes
// may be held around a call.
//
// The bytes of a message go only into spans that were posted under its id, and only if both sides agree on its size; a
// peer that disagrees is cut off. A message that comes before its Post is kept, up to kMaxEarlyBytes of a process;
// above that the process is not read until something is posted, so large messages are sent only once the receiver has
// announced that it has posted them. After Cancel no byte of the call is read or stored any more.
//
// Two further interfaces add to this one: LossyTransport, of kinds that can lose part of a message, and RailTransport,
// of kinds that can be one of several rails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// One execution of one collective, by the same name in every process.
struct CallId {
  uint64_t communicator = 0;  // the groups of devices that call
  uint32_t launch = 0;        // the number of launches that called on it before, alike in all processes
  uint32_t site = 0;          // the place among the launch's calls on it
  uint32_t iteration = 0;     // how often the launch had executed it before, in a loop

  bool operator==(const CallId& other) const {
    return std::tie(communicator, launch, site, iteration) ==
           std::tie(other.communicator, other.launch, other.site, other.iteration);
  }
  bool operator<(const CallId& other) const {
    return std::tie(communicator, launch, site, iteration) <
           std::tie(other.communicator, other.launch, other.site, other.iteration);
  }
};

// A segment of the index-th message that rank `from` of a call has for rank `to`, as both sides list them.
struct MessageId {
  CallId call;
  uint32_t from = 0, to = 0;
  uint32_t index = 0;
  uint32_t segment = 0;
  int64_t call_bytes = 0;  // no part of the name: how much each rank brings to the call

  bool operator==(const MessageId& other) const {
    return std::tie(call, from, to, index, segment) ==
           std::tie(other.call, other.from, other.to, other.index, other.segment);
  }
  bool operator<(const MessageId& other) const {
    return std::tie(call, from, to, index, segment) <
           std::tie(other.call, other.from, other.to, other.index, other.segment);
  }
};

// Memory that holds the bytes [at, at + bytes) of a message. Spans ascend; nothing is carried of the gaps between them.
template <typename Byte>
struct BasicSpan {
  Byte* data = nullptr;
  int64_t bytes = 0;
  int64_t at = 0;
};
using Span = BasicSpan<std::byte>;
using ConstSpan = BasicSpan<const std::byte>;

struct Receiver {
  uint32_t process;
  MessageId id;
};

// A message has come. Its bytes are in the spans that were posted; or, where a view was accepted, byte `at` of it may
// be at view.get() + at instead, in memory of the transport's that stays as long as the view is held. Held views keep
// the sender waiting: release them soon (Transport::MayKeep).
using Received = std::function<void(const Status&, std::shared_ptr<const std::byte> view)>;

// The spans may be used again: the message has been copied or has left. An error: the process is gone.
using Sent = std::function<void(const Status&)>;

// The bytes that a process brings to a call of a group, whose processes give each other theirs.
struct Exchange {
  CallId call;
  const std::vector<uint32_t>& processes;  // of the group, one for each rank
  size_t rank;                             // this process's
  uint64_t fingerprint;                    // alike on all ranks
  std::vector<ConstSpan> spans;
  std::chrono::steady_clock::time_point at;  // when the rank came
};

// The bytes of one rank; byte `at` of them is at bytes + at.
struct Exchanged {
  const std::byte* bytes;
  std::chrono::steady_clock::time_point at;
};
using TakeExchanged = std::function<void(const std::vector<Exchanged>&)>;

class LossyTransport;

class Transport {
 public:
  static constexpr size_t kMaxNotice = 20 << 10;              // bytes
  static constexpr int64_t kMaxMessage = int64_t{256} << 10;  // bytes of a segment, gaps included
  static constexpr int64_t kMaxEarlyBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxSmall = 16 << 10;  // bytes of a message that rails carry with the notices
  static constexpr int64_t kMaxExchanged = 64 << 10;

  // The events of a transport; the functions run as callbacks do.
  class Events {
   public:
    virtual ~Events() = default;
    // Those of one process come in the order in which it sent them. Messages that it sent later may come before them.
    virtual void OnNotice(uint32_t process, std::string_view notice) = 0;
    // Nothing comes from the process any more, for the reason `why`, in words for the user. Once for each process,
    // after all its notices and messages that have come. Messages that came before their Post can still be posted; all
    // others that are posted or sent end with an error, mostly after this event.
    virtual void OnPeerGone(uint32_t process, const Status& why) = 0;
    // The same, where one of the two sides has announced its end.
    virtual void OnPeerLeft(uint32_t process, const Status& why) { OnPeerGone(process, why); }
    // One of several rails to the process has been fenced, or is open again.
    virtual void OnRail(uint32_t /*process*/, uint32_t /*rail*/, bool /*is_open*/) {}
  };

  virtual ~Transport() = default;

  virtual void Notify(uint32_t process, std::string_view notice) = 0;
  virtual void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                    Received done) = 0;
  virtual void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) = 0;
  virtual void Flush() = 0;

  // Whether a view that has just come from the process may be kept until other messages come. Otherwise these could
  // wait for it: consume it at once, or copy and release it.
  virtual bool MayKeep(uint32_t /*process*/) { return true; }

  // The call is over here. Callbacks of its messages that have not begun never run; what still comes of it is dropped.
  // Waits for a copy of its bytes that is being made, never for another process. Not to be called from a callback of
  // the same call.
  virtual void Cancel(const CallId& call) = 0;

  // Null: this kind loses no part of a message.
  virtual LossyTransport* lossy() { return nullptr; }

  // Exchanges up to kMaxExchanged bytes of each rank, if all ranks come within the limit: then `take` gets them, by
  // rank, and all processes return true. Otherwise all return false, and the call is free to go on by messages. `take`
  // must not throw.
  // `yields`: as of Help.
  virtual bool TryExchange(const Exchange& /*mine*/, std::chrono::nanoseconds /*limit*/, bool /*yields*/,
                           const TakeExchanged& /*take*/) {
    return false;
  }

  // A thread waits for the messages of a call, and no longer waits; in either order.
  virtual void Expect() {}
  virtual void EndExpecting() {}

  // Flushes and, if that saves a wake-up of the transport's thread, takes on this thread the messages that come, until
  // `over` returns true, which is asked after each look, or until the limit. A process in which no thread waits may
  // receive outgoing messages as late as the limit. `yields`: this thread stays awake for a while before it sleeps, and
  // leaves its processor to other threads meanwhile. Not to be called from a callback.
  virtual void Help(std::chrono::nanoseconds /*limit*/, bool /*yields*/, const std::function<bool()>& /*over*/) {
    Flush();
  }
};

}  // namespace jaxcomm

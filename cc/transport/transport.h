// Moves messages between this process and the others of its job, over one kind of connection.
//
//   transport.Notify(process, text);                                // a few bytes about a call, in order
//   transport.Post(process, id, spans, /*accepts_view=*/true, done);  // where a message that is expected may go
//   transport.Send({{process, id}}, spans, done);                   // the same bytes to each receiver
//   transport.Flush();                                              // what the three have queued goes out
//
// Nothing here blocks, and everything may be called from any thread. A callback runs once, on a thread of the transport
// or inside the function that it was given to; it must not block, and may call the transport. So no lock that it takes
// may be held around a call.
//
// The bytes of a message go only into spans that were posted under its id, and only if both sides agree on its size; a
// peer that says otherwise is cut off. A message that comes before its Post is kept, up to kMaxEarlyBytes of a process;
// above that the process is not read until something is posted, so large messages are sent only once the other side
// has said that it has posted them. After Cancel no byte of the call is read or stored any more.
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
  uint32_t launch = 0;        // how many launches called on it before, in this process as in the others
  uint32_t site = 0;          // which of the launch's calls on it
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
// be at view.get() + at instead, in memory of the transport's that stays as long as somebody holds the view. Held views
// keep the sender waiting: release them soon (Transport::MayKeep).
using Received = std::function<void(const Status&, std::shared_ptr<const std::byte> view)>;

// Bytes [begin, end) of a message.
struct ByteRange {
  int64_t begin, end;
};

// As Received; `lost`: what will never come, in ascending order. Where it would be are zeros.
using ReceivedLossy =
    std::function<void(const Status&, std::shared_ptr<const std::byte> view, const std::vector<ByteRange>& lost)>;

// The spans may be used again: the message has been copied or has left. An error: the process is gone.
using Sent = std::function<void(const Status&)>;

// How far what has been sent to a process has come, as its host has answered.
struct SendProgress {
  uint64_t confirmed = 0;   // grows with what it has
  uint32_t unanswered = 0;  // packets that it could take, and has not said to have
  bool repeats = false;     // some were lost, others came, and the lost ones have been sent again
};

class Transport {
 public:
  static constexpr size_t kMaxNotice = 20 << 10;              // bytes
  static constexpr int64_t kMaxMessage = int64_t{256} << 10;  // bytes of a segment, gaps included
  static constexpr size_t kMaxLossySpans = 1024;
  static constexpr int64_t kMaxEarlyBytes = int64_t{64} << 20;
  static constexpr int64_t kMaxSmall = 16 << 10;  // bytes of a message that rails carry with the notices

  // What a transport tells; the functions run as callbacks do.
  class Events {
   public:
    virtual ~Events() = default;
    // Those of one process come in the order in which it sent them. Messages that it sent later may come before them.
    virtual void OnNotice(uint32_t process, std::string_view notice) = 0;
    // Of kinds that may be one of several rails: a message of more than kMaxSmall bytes, of which none may be lost, is
    // coming before its Post.
    virtual void OnEarly(uint32_t /*process*/, const MessageId& /*id*/, int64_t /*bytes*/) {}
    // Nothing comes from it any more; `why` says what happened, in words for the user. Once for each process, after all
    // notices and messages that have come of it. Those that came before their Post can still be posted; what has been
    // posted or is sent otherwise ends with an error, mostly after this event.
    virtual void OnPeerGone(uint32_t process, const Status& why) = 0;
    // In its place, where the process itself, or this one, has said that nothing more will come.
    virtual void OnPeerLeft(uint32_t process, const Status& why) { OnPeerGone(process, why); }
  };

  virtual ~Transport() = default;

  virtual void Notify(uint32_t process, std::string_view notice) = 0;
  virtual void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view,
                    Received done) = 0;
  virtual void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) = 0;
  virtual void Flush() = 0;

  // Whether a view that has just come from the process may be kept until other messages come. Otherwise these could
  // wait for it: it is to be copied and released, or used up without waiting for anybody.
  virtual bool MayKeep(uint32_t /*process*/) { return true; }

  // A message of which up to `may_lose` bytes need not come if they get lost on their way, none of them of a span that
  // is important to the sender. Both sides know of it; it is to be sent once the other side has said that it has posted
  // it. Kinds that lose nothing treat it as any other.
  virtual void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, int64_t /*may_lose*/,
                         ReceivedLossy done) {
    Post(process, id, std::move(spans), /*accepts_view=*/true,
         [done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view) {
           done(status, std::move(view), {});
         });
  }
  virtual void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& /*important*/,
                         int64_t /*may_lose*/, Sent done) {
    Send({to}, std::move(spans), std::move(done));
  }

  // The call is over here. Callbacks of its messages that have not begun never run; what still comes of it is dropped.
  // Waits for a copy of its bytes that is being made, never for another process. Not to be called from a callback of
  // the same call.
  virtual void Cancel(const CallId& call) = 0;

  // What kinds do that may be one of several rails; in others nothing.
  //
  // Forgets what has been posted under this id, whose bytes have not begun to come.
  virtual void Withdraw(uint32_t /*process*/, const MessageId& /*id*/) {}
  // Ends the connection with the process on this side, at once and without a word to the other. Once this returns, no
  // byte of it is read or stored any more; what came early is dropped, and no event says that the process is gone.
  // Callbacks and notices that were due may still run. The process may be connected again.
  virtual void Fence(uint32_t /*process*/, const Status& /*why*/) {}
  virtual SendProgress ProgressTo(uint32_t /*process*/) { return {}; }

  // Somebody waits for what comes of a call, and waits no more; in either order.
  virtual void Expect() {}
  virtual void EndExpecting() {}

  // Flushes and, if that spares it the way over a thread of the transport's, takes on this thread what comes: until
  // `over` says so, which is asked after each look, or until the limit. A process where nobody waits may hear of what
  // goes out as late as the limit. `yields`: it stays awake for a while before it sleeps, which others that can run on
  // its processor may use. Not to be called from a callback.
  virtual void Help(std::chrono::nanoseconds /*limit*/, bool /*yields*/, const std::function<bool()>& /*over*/) {
    Flush();
  }
};

}  // namespace jaxcomm

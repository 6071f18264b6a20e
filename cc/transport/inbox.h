// Decides where the bytes of each incoming message go. The message may be posted, early (it arrives before its Post) or
// cancelled.
//
//   Result<std::optional<Incoming>> arrival = inbox.Begin(process, id, bytes);   // the header has arrived
//   ... store the bytes into arrival->spans ...
//   inbox.End(std::move(*arrival));
//
// An error text completes the sentence "process n has been cut off: it sent ..." (CutOff). After an error, nothing more
// may be read from the process. Not thread-safe: guarded by the lock of the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/callbacks.h"
#include "cc/transport/cancelled_calls.h"
#include "cc/transport/message_table.h"
#include "cc/transport/posted.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A message whose bytes are arriving.
struct Incoming {
  uint32_t process;
  MessageId id;
  int64_t bytes;
  std::vector<Span> spans;  // the destination; empty if the bytes are dropped
  std::optional<Posted> posted;
  std::shared_ptr<std::byte> early;
};

// Returned by Inbox::Post if an early message does not fit the Post. The caller must then cut off `process`, the sender
// of the message. `done` is the callback of the Post.
struct Refusal {
  uint32_t process;
  Status why;
  Received done;
};

inline Status CutOff(uint32_t process, const Status& why) {
  return Status(why.code(), "process " + std::to_string(process) + " has been cut off: it sent " + why.message());
}

class Inbox {
 public:
  Inbox(Transport::Events* events, Callbacks* callbacks) : events_(events), callbacks_(callbacks) {}

  void OnEarly(RailTransport::Early early) { on_early_ = std::move(early); }

  void Notice(uint32_t process, std::string_view notice);
  // Returns nullopt if the early messages leave no room for this message. The caller calls Begin again after the next
  // Post or Cancel.
  Result<std::optional<Incoming>> Begin(uint32_t process, const MessageId& id, int64_t bytes);
  // As Begin, for a message that may lose a part. If the message is not posted, its bytes are dropped.
  Result<Incoming> BeginLossy(uint32_t process, const MessageId& id, int64_t bytes, int64_t may_lose);
  void End(Incoming arrival);

  // `gone`: OK, or the error of the process if it has ended. For an ended process, the Post fails unless the whole
  // message has already arrived.
  std::optional<Refusal> Post(const MessageId& id, Posted posted, const Status& gone);

  void Withdraw(uint32_t process, const MessageId& id);
  void Cancel(const CallId& call);
  bool IsCancelled(const CallId& call) const { return cancelled_.Contains(call); }

  // Fails the Posts of messages from the process. Keeps the early messages of the process that are complete.
  void Fail(uint32_t process, const Status& why, std::optional<Incoming> arrival);
  // Removes the Posts and early messages of the process, without running a callback.
  void Drop(uint32_t process);

 private:
  void Deliver(const MessageId& id, Posted posted, const std::shared_ptr<std::byte>& data);

  Transport::Events* const events_;
  Callbacks* const callbacks_;
  RailTransport::Early on_early_;
  MessageTable<Posted> posted_;
  EarlyMessages early_;
  CancelledCalls cancelled_;
};

}  // namespace jaxcomm

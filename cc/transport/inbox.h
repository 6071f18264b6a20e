// Decides where each incoming message belongs: it was posted, comes before its Post, or was cancelled.
//
//   Result<std::optional<Incoming>> arrival = inbox.Begin(process, id, bytes);   // its header has come
//   ... store the bytes into arrival->spans ...
//   inbox.End(std::move(*arrival));
//
// An error names the mistake of the process, in words that follow "it sent"; nothing more may be read from it. Not
// thread-safe: guarded by the lock of the transport.
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

// A message whose bytes are coming.
struct Incoming {
  uint32_t process;
  MessageId id;
  int64_t bytes;
  std::vector<Span> spans;  // their place; empty: the call has been cancelled
  std::optional<Posted> posted;
  std::shared_ptr<std::byte> early;
};

// The message that came does not fit its Post: cut its sender off. `done` is the callback of the Post.
struct Refusal {
  uint32_t process;
  Status why;
  Received done;
};

// The error of a process that has been cut off.
inline Status CutOff(uint32_t process, const Status& why) {
  return Status(why.code(), "process " + std::to_string(process) + " has been cut off: it sent " + why.message());
}

class Inbox {
 public:
  Inbox(Transport::Events* events, Callbacks* callbacks) : events_(events), callbacks_(callbacks) {}

  // As RailTransport says.
  void OnEarly(RailTransport::Early early) { on_early_ = std::move(early); }

  void Notice(uint32_t process, std::string_view notice);
  // No arrival: the message must wait until another one is taken; ask again.
  Result<std::optional<Incoming>> Begin(uint32_t process, const MessageId& id, int64_t bytes);
  // Of a message that may lose a part; without its Post it is dropped.
  Result<Incoming> BeginLossy(uint32_t process, const MessageId& id, int64_t bytes, int64_t may_lose);
  void End(Incoming arrival);

  // `gone`: an error if only messages that are here already can be taken.
  std::optional<Refusal> Post(const MessageId& id, Posted posted, const Status& gone);

  void Withdraw(uint32_t process, const MessageId& id);
  void Cancel(const CallId& call);
  bool IsCancelled(const CallId& call) const { return cancelled_.Contains(call); }

  // Fails the Posts for the process. Its complete early messages stay.
  void Fail(uint32_t process, const Status& why, std::optional<Incoming> arrival);
  // Forgets all of the process; no callback runs.
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

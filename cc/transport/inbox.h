// Where messages that come belong: what has been posted, what came before its Post, what has been cancelled.
//
//   Result<std::optional<Incoming>> arrival = inbox.Begin(process, id, bytes);   // its header has come
//   ... store the bytes into arrival->spans ...
//   inbox.End(std::move(*arrival));
//
// An error says what the process has done wrong, after "it sent"; nothing more may be read from it. Not thread-safe:
// it is guarded by the lock of the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/callbacks.h"
#include "cc/transport/cancelled_calls.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Posted {
  // Of a message that may lose some.
  struct Loss {
    int64_t may_lose;  // bytes
    std::vector<ByteRange> lost;
  };

  uint32_t process;
  std::vector<Span> spans;
  int64_t bytes;  // of all spans
  bool accepts_view;
  Received done;
  std::shared_ptr<Loss> loss = nullptr;  // none: all of it must come
};

// A message whose bytes are coming.
struct Incoming {
  uint32_t process;
  MessageId id;
  int64_t bytes;
  std::vector<Span> spans;  // where they go; none: nowhere, as the call has been cancelled
  std::optional<Posted> posted;
  std::shared_ptr<std::byte> early;
};

// What has come is not what has been posted: its sender is to be cut off. The post's callback is given back.
struct Refusal {
  uint32_t process;
  Status why;
  Received done;
};

// Why it is cut off.
inline Status CutOff(uint32_t process, const Status& why) {
  return Status(why.code(), "process " + std::to_string(process) + " has been cut off: it sent " + why.message());
}

class Inbox {
 public:
  Inbox(Transport::Events* events, Callbacks* callbacks) : events_(events), callbacks_(callbacks) {}

  void Notice(uint32_t process, std::string_view notice);
  // No arrival: it must wait until something is taken; ask again.
  Result<std::optional<Incoming>> Begin(uint32_t process, const MessageId& id, int64_t bytes);
  // Of a message that may lose some; where none is expected it goes nowhere.
  Result<Incoming> BeginLossy(uint32_t process, const MessageId& id, int64_t bytes, int64_t may_lose);
  void End(Incoming arrival);

  // `gone`: nothing can come any more, only what is there already can be taken.
  std::optional<Refusal> Post(const MessageId& id, Posted posted, const Status& gone);

  void Withdraw(uint32_t process, const MessageId& id);
  void Cancel(const CallId& call);
  bool IsCancelled(const CallId& call) const { return cancelled_.Contains(call); }

  // Ends what has been posted for the process. What has come from it already stays.
  void Fail(uint32_t process, const Status& why, std::optional<Incoming> arrival);
  // Forgets all of the process; no callback runs.
  void Drop(uint32_t process);

 private:
  struct Early {
    uint32_t process;
    int64_t bytes;
    std::shared_ptr<std::byte> data;
    bool complete = false;
  };
  using EarlyMessages = std::map<MessageId, Early>;

  void Deliver(const MessageId& id, Posted posted, const std::shared_ptr<std::byte>& data);
  EarlyMessages::iterator Forget(EarlyMessages::iterator early);

  static constexpr int64_t kEarlyOverhead = 256;  // bytes, so that small messages too are bounded

  Transport::Events* const events_;
  Callbacks* const callbacks_;
  std::map<MessageId, Posted> posted_;
  EarlyMessages early_;
  std::map<uint32_t, int64_t> early_bytes_;  // of each process, with the overhead
  CancelledCalls cancelled_;
};

}  // namespace jaxcomm

// A message that was posted, and the messages that came before their Post.
//
//   std::byte* data = early.Add(process, id, bytes);   // null: the process must wait until its messages are posted
//   ... store the bytes ...; early.Find(id)->is_complete = true;
//   std::optional<EarlyMessages::Message> message = early.Take(id);
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/message_table.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Posted {
  // Of a message that may lose a part.
  struct Loss {
    int64_t may_lose;  // bytes
    std::vector<ByteRange> lost;
  };

  uint32_t process;
  std::vector<Span> spans;
  int64_t bytes;  // of all spans
  bool accepts_view;
  Received done;
  std::shared_ptr<Loss> loss = nullptr;  // null: all of it must come
};

// The message came with another size than it was posted with.
Status WrongSize(const MessageId& id, int64_t bytes, int64_t expected);
// The message belongs to another process.
Status WrongSender(const MessageId& id, uint32_t expected);
// For errors: "segment 0 of message 1 from rank 1 to rank 0 of call 1.2.3".
std::string NameOf(const MessageId& id);

class EarlyMessages {
 public:
  struct Message {
    uint32_t process;
    int64_t bytes;
    std::shared_ptr<std::byte> data;
    bool is_complete = false;
  };

  // Memory for a message that is not there yet. Null: those of the process would exceed Transport::kMaxEarlyBytes.
  std::shared_ptr<std::byte> Add(uint32_t process, const MessageId& id, int64_t bytes);
  Message* Find(const MessageId& id) { return messages_.Find(id); }
  std::optional<Message> Take(const MessageId& id);
  void Cancel(const CallId& call);
  void Drop(uint32_t process);
  void DropIncomplete(uint32_t process);

 private:
  static constexpr int64_t kOverhead = 256;  // bytes, so that the number of small messages is bounded, too

  void Release(const Message& message) { bytes_[message.process] -= message.bytes + kOverhead; }

  MessageTable<Message> messages_;
  std::map<uint32_t, int64_t> bytes_;  // of each process, with the overhead
};

}  // namespace jaxcomm

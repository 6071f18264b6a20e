// A posted message, and the early messages. An early message arrives before its Post.
//
//   std::byte* data = early.Add(process, id, bytes);   // nullptr: no room until a message is taken
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
  // How much a lossy message may lose, and the bytes that it has lost.
  struct Loss {
    LossLimit limit;
    std::vector<ByteRange> lost;
  };

  uint32_t process;
  std::vector<Span> spans;
  int64_t bytes;  // number of bytes of all spans
  bool accepts_view;
  Received done;
  std::shared_ptr<Loss> loss = nullptr;  // null if the whole message must arrive
};

// Returns the error of a message that differs in size from its Post.
Status WrongSize(const MessageId& id, int64_t bytes, int64_t expected);
// Returns the error of a message from another process than `expected`, the only process that may send it.
Status WrongSender(const MessageId& id, uint32_t expected);
// Returns the name of the message in error texts: "segment 0 of message 1 from rank 1 to rank 0 of call 1.2.3".
std::string NameOf(const MessageId& id);

class EarlyMessages {
 public:
  struct Message {
    uint32_t process;
    int64_t bytes;
    std::shared_ptr<std::byte> data;
    bool is_complete = false;
  };

  // Returns memory for a message. Returns nullptr if the early messages of the process would exceed
  // Transport::kMaxEarlyBytes.
  std::shared_ptr<std::byte> Add(uint32_t process, const MessageId& id, int64_t bytes);
  Message* Find(const MessageId& id) { return messages_.Find(id); }
  std::optional<Message> Take(const MessageId& id);
  void Cancel(const CallId& call);
  void Drop(uint32_t process);
  void DropIncomplete(uint32_t process);

 private:
  static constexpr int64_t kOverhead = 256;  // bytes added to each message's size; limits the number of small messages

  void Release(const Message& message) { bytes_[message.process] -= message.bytes + kOverhead; }

  MessageTable<Message> messages_;
  std::map<uint32_t, int64_t> bytes_;  // bytes of early messages by process, with the overhead
};

}  // namespace jaxcomm

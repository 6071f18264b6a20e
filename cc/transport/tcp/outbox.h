// The frames that wait to be sent to one process.
//
//   outbox.Push(header, message);                       // or PushCopy
//   size_t bytes; const size_t count = outbox.Gather(vectors, &bytes);
//   outbox.Advance(sendmsg(... vectors ...), &left);    // `left`: the messages that are completely sent
//
// Gathered bytes keep their addresses until Advance, even if more frames are pushed. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cc/transport/frame.h"
#include "cc/transport/outgoing.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Outbox {
 public:
  static constexpr size_t kMaxVectors = 256;  // maximum number of buffers in one system call; IOV_MAX is 1024

  // The message's bytes must stay valid until they are sent.
  void Push(const Header& header, std::shared_ptr<Outgoing> message);
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload);

  size_t Gather(iovec (&vectors)[kMaxVectors], size_t* bytes) const;
  void Advance(size_t bytes, std::vector<std::shared_ptr<Outgoing>>* left);

  // Removes the messages of the call. The rest of a partly sent message is copied and still sent, because the receiver
  // expects all bytes of the message.
  void Cancel(const CallId& call);
  // Removes all frames, and returns the unsent messages.
  std::vector<std::shared_ptr<Outgoing>> Clear();

  bool empty() const { return frames_.empty(); }
  size_t copied_bytes() const { return copied_bytes_; }

 private:
  // `own` is sent first, then the bytes of `message`.
  struct Frame {
    Header header;
    std::vector<std::byte> own;
    std::shared_ptr<Outgoing> message;
    size_t bytes;
  };

  // After this number of bytes, Gather adds no further buffer, because other threads may wait until the system call
  // ends.
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  std::deque<Frame> frames_;
  size_t sent_ = 0;  // bytes of the first frame that have been sent
  size_t copied_bytes_ = 0;
};

}  // namespace jaxcomm

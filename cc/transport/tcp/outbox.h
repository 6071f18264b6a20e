// The frames that wait to be sent to one process.
//
//   outbox.Push(header, message);                       // or PushCopy
//   size_t bytes; const size_t count = outbox.Gather(vectors, &bytes);
//   outbox.Advance(sendmsg(... vectors ...), &left);    // `left`: the messages that were sent
//
// Gathered bytes stay where they are until Advance, also if more is pushed. Not thread-safe.
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
  static constexpr size_t kMaxVectors = 256;  // of one system call: IOV_MAX is 1024

  // The payload is read when it is sent, and must stay until then.
  void Push(const Header& header, std::shared_ptr<Outgoing> message);
  void PushCopy(const Header& header, const std::vector<ConstSpan>& payload);

  size_t Gather(iovec (&vectors)[kMaxVectors], size_t* bytes) const;
  void Advance(size_t bytes, std::vector<std::shared_ptr<Outgoing>>* left);

  // Takes messages of the call away. If one is half sent, its rest is copied, as the other side counts its bytes.
  void Cancel(const CallId& call);
  // Takes everything away: the messages that will never leave.
  std::vector<std::shared_ptr<Outgoing>> Clear();

  bool empty() const { return frames_.empty(); }
  size_t copied_bytes() const { return copied_bytes_; }

 private:
  // First `own`, then the bytes of `message`.
  struct Frame {
    Header header;
    std::vector<std::byte> own;
    std::shared_ptr<Outgoing> message;
    size_t bytes;
  };

  static constexpr size_t kMaxBytes = size_t{1} << 20;  // of one system call, which others may have to wait for

  std::deque<Frame> frames_;
  size_t sent_ = 0;  // bytes of the first frame
  size_t copied_bytes_ = 0;
};

}  // namespace jaxcomm

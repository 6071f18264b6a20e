// Parses the bytes from one process. Headers and notices are read through a buffer. Messages are read into their spans.
//
//   const size_t count = reader.Gather(vectors);         // `vectors`: places for the next bytes, in order
//   Status status = reader.Take(recvmsg(... vectors ...));   // recvmsg returns the number of bytes stored
//
// One read takes all frames that have arrived. A large message goes straight into its spans. An error text
// completes the sentence "process n has been cut off: it sent ..." (CutOff). After an error, nothing more may be read
// from the process. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/inbox.h"

namespace jaxcomm {

class FrameReader {
 public:
  static constexpr size_t kMaxVectors = 64;

  FrameReader(uint32_t process, Inbox* inbox) : process_(process), inbox_(inbox), buffer_(kBuffer) {}

  // Must not be called while waits() or at_end() is true.
  size_t Gather(iovec (&vectors)[kMaxVectors]);
  Status Take(size_t bytes);

  // Returns whether the reader has stopped at a message for which the inbox has no room. Resume retries the message.
  bool waits() const { return state_ == State::kAdmission; }
  Status Resume() { return Parse(); }
  bool at_end() const { return state_ == State::kEnd; }

  // If a message of this call is arriving, drops the rest of its bytes.
  void Cancel(const CallId& call);
  std::optional<Incoming> TakeArrival();
  // Resets the reader for a new connection.
  void Restart();

 private:
  enum class State { kHeader, kNotice, kAdmission, kMessage, kEnd };

  static constexpr size_t kBuffer = 64 << 10;
  static constexpr size_t kAhead = 8 << 10;  // maximum number of bytes read beyond a large message; these are copied

  Status Parse();
  size_t buffered() const { return end_ - begin_; }
  void Store();
  void Skip(int64_t bytes);

  const uint32_t process_;
  Inbox* const inbox_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // the unread bytes in the buffer are at [begin_, end_)
  State state_ = State::kHeader;
  Header header_;
  std::optional<Incoming> arrival_;
  int64_t missing_ = 0;  // bytes of arrival_ that have not arrived yet
  size_t span_ = 0;      // index of the span for the next byte
  int64_t offset_ = 0;   // offset of the next byte in the span
};

}  // namespace jaxcomm

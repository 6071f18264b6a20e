// Takes the bytes from one process apart: headers and notices by way of a buffer, messages into their places.
//
//   const size_t count = reader.Gather(vectors);         // where the next bytes may be stored, in order
//   Status status = reader.Take(recvmsg(... vectors ...));   // the bytes stored
//
// A read yields all frames that have come, and the bytes of a large message go straight into its spans. An error names
// the mistake of the process, in words that follow "it sent"; nothing more may be read from it. Not thread-safe.
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

  // Not while it waits, nor after the goodbye.
  size_t Gather(iovec (&vectors)[kMaxVectors]);
  Status Take(size_t bytes);

  // A message that must wait keeps all behind it from being read; Resume asks again whether it must.
  bool waits() const { return state_ == State::kAdmission; }
  Status Resume() { return Parse(); }
  bool at_end() const { return state_ == State::kEnd; }

  // The bytes still to come of a message of this call are dropped.
  void Cancel(const CallId& call);
  std::optional<Incoming> TakeArrival();
  // For a new connection.
  void Restart();

 private:
  enum class State { kHeader, kNotice, kAdmission, kMessage, kEnd };

  static constexpr size_t kBuffer = 64 << 10;
  static constexpr size_t kAhead = 8 << 10;  // of what follows a large message, which would be copied once more

  Status Parse();
  size_t buffered() const { return end_ - begin_; }
  void Store();
  void Skip(int64_t bytes);

  const uint32_t process_;
  Inbox* const inbox_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // of the bytes in the buffer
  State state_ = State::kHeader;
  Header header_;
  std::optional<Incoming> arrival_;
  int64_t missing_ = 0;  // bytes of the arrival
  size_t span_ = 0;      // of the arrival, where the next byte goes
  int64_t offset_ = 0;   // in the span
};

}  // namespace jaxcomm

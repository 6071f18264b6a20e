// IPv4 frames and limits of queues, for tests of switches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/testbed/frame.h"
#include "cc/testbed/output_queue.h"

namespace jaxcomm {

inline constexpr bool kImportant = true, kOrdinary = false;

// Returns a frame of `size` bytes to the host with this address.
inline Frame FrameOf(int64_t size, size_t priority = 0, bool important = kOrdinary, uint64_t destination = 0) {
  Frame frame{std::vector<std::byte>(static_cast<size_t>(size))};
  frame.bytes[5] = std::byte(destination);
  frame.bytes[12] = std::byte{0x08};
  frame.bytes[14] = std::byte{0x45};
  frame.bytes[15] = std::byte(priority << 5 | (important ? 2 : 0));
  return frame;
}

// Returns a UDP packet of the flow with this source port.
inline Frame FrameOfFlow(int64_t size, uint16_t source_port, uint64_t destination) {
  Frame frame = FrameOf(size, 0, kOrdinary, destination);
  frame.bytes[23] = std::byte{17};
  frame.bytes[34] = std::byte(source_port >> 8);
  frame.bytes[35] = std::byte(source_port & 0xff);
  return frame;
}

// Returns the same limits for all priorities. Important frames may fill the buffer.
inline QueueLimits Limits(int64_t buffer, int64_t ordinary) {
  QueueLimits limits;
  limits.buffer = buffer;
  limits.ordinary.fill(ordinary);
  limits.important.fill(buffer);
  return limits;
}

}  // namespace jaxcomm

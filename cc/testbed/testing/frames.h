// Frames of IPv4 for tests of switches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/testbed/frame.h"

namespace jaxcomm {

inline constexpr bool kImportant = true, kOrdinary = false;

// Of `size` bytes, to the host with this number as its address.
inline Frame FrameOf(int64_t size, size_t priority = 0, bool important = kOrdinary, uint64_t destination = 0) {
  Frame frame{std::vector<std::byte>(static_cast<size_t>(size))};
  frame.bytes[5] = std::byte(destination);
  frame.bytes[12] = std::byte{0x08};
  frame.bytes[14] = std::byte{0x45};
  frame.bytes[15] = std::byte(priority << 5 | (important ? 2 : 0));
  return frame;
}

}  // namespace jaxcomm

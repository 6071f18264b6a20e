// Constants of FabricTransport that several of its files use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxcomm {

// The epoll keys besides SocketTransport::kWake and the numbers of processes.
constexpr uint64_t kCompleted = UINT64_MAX - 1, kReleased = UINT64_MAX - 2;

// The bytes over the connection beside a path. kExpects: frames of the path are received from now on. kHere answers
// kAsk.
constexpr std::byte kExpects{'+'}, kAsk{'?'}, kHere{'!'};

}  // namespace jaxcomm

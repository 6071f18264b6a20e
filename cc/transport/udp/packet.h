// The packets that two processes exchange over UDP. A packet is a header of fixed size and a part of a frame (frame.h).
//
//   SealPacket(header, key, packet, size);     // the caller has set the bytes from kPacketHeaderBytes on
//   std::optional<PacketHeader> header = OpenPacket(packet, size, key);   // nullopt: the sender lacks the key
//
// A packet's header names a frame and the place of the packet's bytes in the frame, so packets may arrive in any order.
// The packet's tag covers the whole packet and is verified before any field is used. All numbers are little-endian.
// Each direction of a path has its own key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cc/transport/siphash.h"

namespace jaxcomm {

enum class PacketKind : uint8_t {
  kMessage = 1,  // a part of a message's frame
  kOrdered = 2,  // a part of the frame of a notice or goodbye; these frames are delivered in the order of their numbers
  kProbe = 3,    // requests an acknowledgement
  // An acknowledgement: kAnsweredPackets bits, of which bit i is whether packet `frame` - i was taken; then the number
  // of the oldest message that the receiver has not finished, in 64 bits.
  kAnswer = 4,
  kLossy = 5,  // a part of the frame of a lossy message (lossy_frame.h)
};

struct PacketHeader {
  PacketKind kind = PacketKind::kMessage;
  // Requests an acknowledgement at once. In an acknowledgement: the receiver has no room, and expects only probes until
  // its next acknowledgement.
  bool asks = false;
  uint64_t number = 0;  // below 2^48, and never used twice; acknowledgements are numbered separately
  // Below 2^48: the frame's number among messages, or among notices and goodbyes. In an acknowledgement: the number of
  // the newest packet that has arrived.
  uint64_t frame = 0;
  // The place of the packet's bytes in the frame. In an acknowledgement: nanoseconds since packet `frame` arrived.
  uint32_t offset = 0;
  // The size of the frame. In an acknowledgement: when packet `frame` arrived, in microseconds modulo 2^32.
  uint32_t bytes = 0;
  // Number of messages sent completely, counting this packet; modulo 2^16. In an acknowledgement: the path whose
  // packets it reports, which need not be the path that carries it.
  uint16_t sent = 0;

  bool operator==(const PacketHeader& other) const;
};

constexpr size_t kPacketHeaderBytes = 32;
constexpr uint64_t kAnsweredPackets = 1024;
constexpr size_t kAnswerBytes = kAnsweredPackets / 8 + sizeof(uint64_t);
// The maximum number of messages in flight to a process, counted from the oldest incomplete message. The same limit
// holds for notices.
constexpr uint64_t kMaxFrames = 4096;

void SealPacket(const PacketHeader& header, const SipKey& key, std::byte* packet, size_t size);
std::optional<PacketHeader> OpenPacket(const std::byte* packet, size_t size, const SipKey& key);

}  // namespace jaxcomm

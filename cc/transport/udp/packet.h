// The packets between two processes over UDP: each is a header of fixed size and a part of a frame (frame.h).
//
//   SealPacket(header, key, packet, size);     // its bytes from kPacketHeaderBytes on are there already
//   std::optional<PacketHeader> header = OpenPacket(packet, size, key);   // none: its sender does not have the key
//
// A packet names the place of its bytes, so the order of packets does not matter. Its tag covers all of it; no field
// is believed before. All numbers are little-endian. Each direction of a connection has a key of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cc/transport/udp/siphash.h"

namespace jaxcomm {

enum class PacketKind : uint8_t {
  kMessage = 1,  // a part of a message's frame
  kOrdered = 2,  // a part of a notice's or a goodbye: these are taken in the order of their numbers
  kProbe = 3,    // asks for an answer
  kAnswer = 4,   // the packets that have come: kAnswerBytes of bits, the i-th of packet `frame` - i
  kLossy = 5,    // a part of the frame of a lossy message (lossy_frame.h)
};

struct PacketHeader {
  PacketKind kind = PacketKind::kMessage;
  bool asks = false;    // for an answer at once; of an answer: only probes may come until the next one
  uint64_t number = 0;  // below 2^48; answers have numbers of their own; no number is used twice
  uint64_t frame = 0;   // below 2^48: the frame's number among the messages, or the notices and goodbyes
  uint32_t offset = 0;  // in the frame; of an answer: nanoseconds since packet `frame` came
  uint32_t bytes = 0;   // of the whole frame; of an answer: when that was, in microseconds of a clock, modulo 2^32
  uint16_t sent = 0;    // frames of messages that have been sent whole, modulo 2^16, with this packet

  bool operator==(const PacketHeader& other) const;
};

constexpr size_t kPacketHeaderBytes = 32;
constexpr size_t kAnswerBytes = 128;
// A process has no more messages, or notices, under way than this, counted from the oldest that is not whole.
constexpr uint64_t kMaxFrames = 4096;
constexpr uint64_t kAnsweredPackets = 8 * kAnswerBytes;

void SealPacket(const PacketHeader& header, const SipKey& key, std::byte* packet, size_t size);
std::optional<PacketHeader> OpenPacket(const std::byte* packet, size_t size, const SipKey& key);

}  // namespace jaxcomm

#include "cc/transport/udp/packet.h"

#include <tuple>

#include "cc/base/little_endian.h"

namespace jaxcomm {
namespace {

// The first byte holds the kind and kAsks. The next seven bytes hold the number. The tag is between the header's fields
// and the frame's bytes.
constexpr size_t kFrameAt = 8, kOffsetAt = 16, kBytesAt = 20, kTagAt = 24;
constexpr int kSentBit = 48;  // `sent` is stored from this bit on, above the frame's number
constexpr uint8_t kAsks = 0x80;

// Hashes the fields and the frame's bytes, but not the tag between them, without copying.
uint64_t Tag(const SipKey& key, const std::byte* packet, size_t size) {
  return SipHash(key, packet, kTagAt, packet + kPacketHeaderBytes, size - kPacketHeaderBytes);
}

}  // namespace

bool PacketHeader::operator==(const PacketHeader& other) const {
  return std::tie(kind, asks, number, frame, offset, bytes, sent) ==
         std::tie(other.kind, other.asks, other.number, other.frame, other.offset, other.bytes, other.sent);
}

void SealPacket(const PacketHeader& header, const SipKey& key, std::byte* packet, size_t size) {
  const uint64_t first = static_cast<uint8_t>(header.kind) | (header.asks ? kAsks : 0u);
  StoreNumber<uint64_t>(header.number << 8 | first, packet);
  StoreNumber<uint64_t>(uint64_t{header.sent} << kSentBit | header.frame, packet + kFrameAt);
  StoreNumber<uint32_t>(header.offset, packet + kOffsetAt);
  StoreNumber<uint32_t>(header.bytes, packet + kBytesAt);
  StoreNumber<uint64_t>(Tag(key, packet, size), packet + kTagAt);
}

std::optional<PacketHeader> OpenPacket(const std::byte* packet, size_t size, const SipKey& key) {
  if (size < kPacketHeaderBytes || LoadNumber<uint64_t>(packet + kTagAt) != Tag(key, packet, size)) return std::nullopt;
  const auto first = static_cast<uint8_t>(packet[0]);
  const auto kind = static_cast<PacketKind>(first & ~kAsks);
  if (kind < PacketKind::kMessage || kind > PacketKind::kLossy) return std::nullopt;
  PacketHeader header;
  header.kind = kind;
  header.asks = (first & kAsks) != 0;
  header.number = LoadNumber<uint64_t>(packet) >> 8;
  const auto frame = LoadNumber<uint64_t>(packet + kFrameAt);
  header.frame = frame & ((uint64_t{1} << kSentBit) - 1);
  header.sent = static_cast<uint16_t>(frame >> kSentBit);
  header.offset = LoadNumber<uint32_t>(packet + kOffsetAt);
  header.bytes = LoadNumber<uint32_t>(packet + kBytesAt);
  return header;
}

}  // namespace jaxcomm

#include "cc/transport/udp/packet.h"

#include <tuple>

namespace jaxcomm {
namespace {

// The tag stands behind the header's fields, in front of the frame's bytes.
constexpr size_t kTagAt = 24, kTagBytes = 8;
constexpr uint8_t kAsks = 0x80;

void Put(std::byte* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t Get(const std::byte* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return value;
}

// The fields and the rest, without the tag between them: so nothing is copied.
uint64_t Tag(const SipKey& key, const std::byte* packet, size_t size) {
  return SipHash(key, packet, kTagAt, packet + kPacketHeaderBytes, size - kPacketHeaderBytes);
}

}  // namespace

bool PacketHeader::operator==(const PacketHeader& other) const {
  return std::tie(kind, asks, number, frame, offset, bytes) ==
         std::tie(other.kind, other.asks, other.number, other.frame, other.offset, other.bytes);
}

void SealPacket(const PacketHeader& header, const SipKey& key, std::byte* packet, size_t size) {
  Put(packet, static_cast<uint8_t>(header.kind) | (header.asks ? kAsks : 0), 1);
  Put(packet + 1, header.number, 7);
  Put(packet + 8, header.frame, 8);
  Put(packet + 16, header.offset, 4);
  Put(packet + 20, header.bytes, 4);
  Put(packet + kTagAt, Tag(key, packet, size), kTagBytes);
}

std::optional<PacketHeader> OpenPacket(const std::byte* packet, size_t size, const SipKey& key) {
  if (size < kPacketHeaderBytes || Get(packet + kTagAt, kTagBytes) != Tag(key, packet, size)) return std::nullopt;
  const auto first = static_cast<uint8_t>(packet[0]);
  const auto kind = static_cast<PacketKind>(first & ~kAsks);
  if (kind < PacketKind::kMessage || kind > PacketKind::kAnswer) return std::nullopt;
  PacketHeader header;
  header.kind = kind;
  header.asks = (first & kAsks) != 0;
  header.number = Get(packet + 1, 7);
  header.frame = Get(packet + 8, 8);
  header.offset = static_cast<uint32_t>(Get(packet + 16, 4));
  header.bytes = static_cast<uint32_t>(Get(packet + 20, 4));
  return header;
}

}  // namespace jaxcomm

#include "cc/transport/udp/packet.h"

#include <algorithm>
#include <iterator>
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

void StoreFields(const PacketHeader& header, std::byte* packet) {
  const uint64_t first = static_cast<uint8_t>(header.kind) | (header.asks ? kAsks : 0u);
  StoreNumber<uint64_t>(header.number << 8 | first, packet);
  StoreNumber<uint64_t>(uint64_t{header.sent} << kSentBit | header.frame, packet + kFrameAt);
  StoreNumber<uint32_t>(header.offset, packet + kOffsetAt);
  StoreNumber<uint32_t>(header.bytes, packet + kBytesAt);
}

std::optional<PacketHeader> LoadFields(const std::byte* packet) {
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

// Returns the number that the cipher uses for a packet. Packets that carry frames and acknowledgements are numbered
// separately, and the first eight bytes hold the kind and the number, so these bytes differ in all packets.
uint64_t CipherNumber(const std::byte* packet) { return LoadNumber<uint64_t>(packet); }

// Gives the cipher the fields and the payload. The payload is encrypted or decrypted in place, or only authenticated.
void AddPacket(SealKind kind, Cipher& cipher, std::byte* packet, const std::byte* trailer) {
  std::byte* const payload = packet + kPacketHeaderBytes;
  const auto bytes = static_cast<size_t>(trailer - payload);
  cipher.Begin(CipherNumber(packet), packet, kTagAt);
  kind == SealKind::kGcm ? cipher.Add(payload, bytes, payload) : cipher.AddToHead(payload, bytes);
}

}  // namespace

bool PacketHeader::operator==(const PacketHeader& other) const {
  return std::tie(kind, asks, number, frame, offset, bytes, sent) ==
         std::tie(other.kind, other.asks, other.number, other.frame, other.offset, other.bytes, other.sent);
}

void SealPacket(const PacketHeader& header, const SipKey& key, std::byte* packet, size_t size) {
  StoreFields(header, packet);
  StoreNumber<uint64_t>(Tag(key, packet, size), packet + kTagAt);
}

std::optional<PacketHeader> OpenPacket(const std::byte* packet, size_t size, const SipKey& key) {
  if (size < kPacketHeaderBytes || LoadNumber<uint64_t>(packet + kTagAt) != Tag(key, packet, size)) return std::nullopt;
  return LoadFields(packet);
}

void PacketSealer::Seal(const PacketHeader& header, std::byte* packet, size_t size) {
  if (!cipher_) return SealPacket(header, key_, packet, size);
  StoreFields(header, packet);
  std::byte* const trailer = packet + size - trailer_bytes();
  std::byte tag[kTagBytes];
  Sealer* const cipher = cipher_->Find(header.number);
  if (cipher) AddPacket(kind_, *cipher, packet, trailer);
  // If libcrypto fails, no byte of the packet may be sent. The packet then counts as forged, so it is lost.
  if (!cipher || !cipher->End(tag)) return std::fill(packet, packet + size, std::byte{0});
  cipher_->Note(header.number);
  std::copy_n(tag, kPacketHeaderBytes - kTagAt, packet + kTagAt);
  std::copy(tag + kPacketHeaderBytes - kTagAt, std::end(tag), trailer);
}

std::optional<PacketHeader> PacketOpener::Open(std::byte* packet, size_t size) {
  if (!packets_) return OpenPacket(packet, size, key_);
  if (size < kPacketHeaderBytes + trailer_bytes()) return std::nullopt;
  std::byte* const trailer = packet + size - trailer_bytes();
  std::byte tag[kTagBytes];
  std::copy_n(packet + kTagAt, kPacketHeaderBytes - kTagAt, tag);
  std::copy_n(trailer, trailer_bytes(), tag + kPacketHeaderBytes - kTagAt);
  const std::optional<PacketHeader> header = LoadFields(packet);  // not authenticated yet
  if (!header) return std::nullopt;
  KeyPeriods<Opener>& periods = header->kind == PacketKind::kAnswer ? *answers_ : *packets_;
  Opener* const cipher = periods.Find(header->number);
  if (!cipher) return std::nullopt;
  AddPacket(kind_, *cipher, packet, trailer);
  if (!cipher->End(tag)) return std::nullopt;
  periods.Note(header->number);
  return header;
}

Result<PacketSeals> PacketSeals::Make(const PacketKeys& keys, uint64_t packets_of_a_key) {
  const SealKind kind = keys.kind;
  if (kind == SealKind::kSipHash) {
    return PacketSeals{{kind, keys.sends, std::nullopt},
                       {kind, keys.sends, std::nullopt},
                       {kind, keys.receives, std::nullopt, std::nullopt}};
  }
  const auto sealer = [&] { return KeyPeriods<Sealer>::Make(keys.cipher.sends, packets_of_a_key); };
  const auto opener = [&] { return KeyPeriods<Opener>::Make(keys.cipher.receives, packets_of_a_key); };
  auto packets = sealer(), answers = sealer();
  auto opens_packets = opener(), opens_answers = opener();
  for (const Status& status : {packets.status(), answers.status(), opens_packets.status(), opens_answers.status()}) {
    if (!status.ok()) return status;
  }
  return PacketSeals{{kind, {}, std::move(packets.value())},
                     {kind, {}, std::move(answers.value())},
                     {kind, {}, std::move(opens_packets.value()), std::move(opens_answers.value())}};
}

}  // namespace jaxcomm

// The packets that two processes exchange over UDP. A packet is a header of fixed size and a part of a frame (frame.h).
//
//   SealPacket(header, key, packet, size);     // the caller has set the bytes from kPacketHeaderBytes on
//   std::optional<PacketHeader> header = OpenPacket(packet, size, key);   // nullopt: the sender lacks the key
//
// A packet's header names a frame and the place of the packet's bytes in the frame, so packets may arrive in any order.
// The packet's tag covers the whole packet and is verified before any field is used. All numbers are little-endian.
// Each direction of a path has its own key.
//
//   Result<PacketSeals> seals = PacketSeals::Make(keys);   // for a path, which may use a cipher
//   seals.value().packets.Seal(header, packet, size);
//   std::optional<PacketHeader> header = seals.value().arrivals.Open(packet, size);
//
// There are three kinds of seals: tags by SipHash; tags by AES-GMAC, which cost less where the processor has
// instructions for them; and encryption by AES-GCM. The fields of an encrypted packet's header stay readable. The tag
// of AES-GMAC and AES-GCM is longer, and its second half is at the end of the packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cc/base/status.h"
#include "cc/transport/crypto/aead.h"
#include "cc/transport/crypto/siphash.h"

namespace jaxcomm {

enum class PacketKind : uint8_t {
  kMessage = 1,  // a part of a message's frame
  kOrdered = 2,  // a part of the frame of a notice or goodbye; these frames are delivered in the order of their numbers
  kProbe = 3,    // requests an acknowledgement
  // An acknowledgement. First come kAnsweredPackets bits: bit i says whether packet `frame` - i was taken. Then comes,
  // in 64 bits, the number of the oldest message that the receiver has not finished.
  kAnswer = 4,
  kLossy = 5,  // a part of the frame of a lossy message (lossy_frame.h)
};

struct PacketHeader {
  PacketKind kind = PacketKind::kMessage;
  // true: requests an acknowledgement at once. In an acknowledgement, true: the receiver has no room, and expects only
  // probes until its next acknowledgement.
  bool asks = false;
  uint64_t number = 0;  // below 2^48, and never used twice; acknowledgements are numbered separately
  // The frame's number, below 2^48. Messages have one sequence of numbers; notices and goodbyes have another. In an
  // acknowledgement: the number of the newest packet that has arrived.
  uint64_t frame = 0;
  // The offset of the packet's bytes in the frame. In an acknowledgement: nanoseconds since packet `frame` arrived.
  uint32_t offset = 0;
  // The size of the frame. In an acknowledgement: the time at which packet `frame` arrived, in microseconds modulo
  // 2^32.
  uint32_t bytes = 0;
  // All messages whose numbers are below `sent` (modulo 2^16) have been sent completely, counting this packet, and have
  // no droppable bytes in flight on other paths. In an acknowledgement: the path of the reported packets. The
  // acknowledgement itself may use another path.
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

// Returns whether a packet claims to be an acknowledgement. The packet is not verified.
bool IsAnswer(const std::byte* packet, size_t size);

enum class SealKind { kSipHash, kGmac, kGcm };

// The keys of both directions of a path. The kind of seal determines which keys are used.
struct PacketKeys {
  SealKind kind = SealKind::kSipHash;
  SipKey sends{}, receives{};  // for kSipHash
  CipherKeys cipher{};         // for the other kinds
};

constexpr size_t kMaxTrailerBytes = kTagBytes - sizeof(uint64_t);
// Returns the number of bytes after the payload of a packet.
constexpr size_t PacketTrailerBytes(SealKind kind) { return kind == SealKind::kSipHash ? 0 : kMaxTrailerBytes; }

// A key seals at most this number of packets. Then it is replaced by the next key, so that the limits of AES-GCM in RFC
// 9001, section B.1, hold for packets of all sizes.
constexpr uint64_t kPacketsOfAKey = uint64_t{1} << 22;

// The ciphers for three successive keys: the previous key, the current key and the next key. `Side`: Sealer or Opener.
template <typename Side>
class KeyPeriods {
 public:
  static Result<KeyPeriods> Make(const CipherKey& key, uint64_t packets_of_a_key) {
    KeyPeriods made(packets_of_a_key);
    Result<Side> first = Side::Make(key);
    if (!first.ok()) return first.status();
    made.sides_[1] = std::move(first.value());
    made.sides_[2] = After(*made.sides_[1]);
    return made;
  }

  // Returns the cipher for a packet's number, or nullptr if the number belongs to none of the three keys.
  Side* Find(uint64_t number) {
    const uint64_t place = number / packets_of_a_key_ + 1 - period_;
    return place < sides_.size() && sides_[place] ? &*sides_[place] : nullptr;
  }
  // Must be called after a packet with this number was sealed or opened.
  void Note(uint64_t number) {
    if (number / packets_of_a_key_ <= period_) return;
    ++period_;
    sides_[0] = std::move(sides_[1]);
    sides_[1] = std::move(sides_[2]);
    sides_[2] = After(*sides_[1]);
  }

 private:
  explicit KeyPeriods(uint64_t packets_of_a_key) : packets_of_a_key_(packets_of_a_key) {}

  static std::optional<Side> After(Side& side) {
    const std::optional<CipherKey> key = side.NextKey();
    if (!key) return std::nullopt;
    Result<Side> next = Side::Make(*key);
    return next.ok() ? std::optional<Side>(std::move(next.value())) : std::nullopt;
  }

  uint64_t packets_of_a_key_;
  uint64_t period_ = 0;
  std::array<std::optional<Side>, 3> sides_;  // for the keys before, at and after period_
};

// Seals packets in one direction. Used by one thread at a time.
class PacketSealer {
 public:
  PacketSealer(SealKind kind, const SipKey& key, std::optional<KeyPeriods<Sealer>> cipher)
      : kind_(kind), key_(key), cipher_(std::move(cipher)) {}

  // `size` includes the header and the trailer. The caller has set the bytes between them.
  void Seal(const PacketHeader& header, std::byte* packet, size_t size);
  size_t trailer_bytes() const { return PacketTrailerBytes(kind_); }

 private:
  SealKind kind_;
  SipKey key_;
  std::optional<KeyPeriods<Sealer>> cipher_;
};

// Opens packets of one direction. Used by one thread at a time.
class PacketOpener {
 public:
  PacketOpener(SealKind kind, const SipKey& key, std::optional<KeyPeriods<Opener>> packets,
               std::optional<KeyPeriods<Opener>> answers)
      : kind_(kind), key_(key), packets_(std::move(packets)), answers_(std::move(answers)) {}

  // Returns nullopt if the sender lacks the key. Otherwise the payload has been decrypted in place.
  std::optional<PacketHeader> Open(std::byte* packet, size_t size);
  size_t trailer_bytes() const { return PacketTrailerBytes(kind_); }

 private:
  SealKind kind_;
  SipKey key_;
  std::optional<KeyPeriods<Opener>> packets_, answers_;
};

// The seals of one process for a path.
struct PacketSeals {
  // Fails if the kind needs libcrypto, and this machine has none.
  static Result<PacketSeals> Make(const PacketKeys& keys, uint64_t packets_of_a_key = kPacketsOfAKey);

  PacketSealer packets;  // for all packets except acknowledgements
  PacketSealer answers;  // for acknowledgements; a thread may use it while another thread uses `packets`
  PacketOpener arrivals;
};

}  // namespace jaxcomm

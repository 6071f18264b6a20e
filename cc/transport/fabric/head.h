// The head of a frame over libfabric: the frame's header, the sender, its acknowledgements, and a tag.
//
//   SealHead(head, key, out);
//   if (!IsSealed(in, key)) ...                 // the sender lacks the key of the path
//   FabricHead head = DecodeHead(in);
//
// The tag covers the head only, not the payload: a stranger can neither acknowledge nor begin a frame. All numbers are
// little-endian. The counts are modulo 2^16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cc/base/little_endian.h"
#include "cc/transport/crypto/siphash.h"
#include "cc/transport/frame.h"

namespace jaxcomm {

constexpr size_t kHeadBytes = 64;

struct FabricHead {
  uint16_t process = 0;                // the sender
  uint32_t number = 0;                 // the frame's number among the path's frames of its size; 0 in acknowledgements
  uint16_t arrived = 0;                // number of frames of both sizes that have arrived at the sender
  std::array<uint16_t, 2> freed = {};  // number of the sender's slots, by size, that are free again
};

// These values stand in place of a frame's type: an acknowledgement has no payload, and the payload of a trial of a
// path has no meaning. Their bytes spell jcA1 and jcT1.
constexpr uint32_t kAcknowledgement = 0x3141636A, kTrial = 0x3154636A;

namespace fabric_head {
constexpr size_t kProcessAt = kHeaderBytes, kArrivedAt = 46, kNumberAt = 48, kFreedAt = 52, kTagAt = 56;
}  // namespace fabric_head

// The caller has encoded the frame's header into the first kHeaderBytes bytes.
inline void SealHead(const FabricHead& head, const SipKey& key, std::byte* out) {
  using namespace fabric_head;
  StoreNumber<uint16_t>(head.process, out + kProcessAt);
  StoreNumber<uint16_t>(head.arrived, out + kArrivedAt);
  StoreNumber<uint32_t>(head.number, out + kNumberAt);
  for (size_t size = 0; size < 2; ++size) StoreNumber<uint16_t>(head.freed[size], out + kFreedAt + 2 * size);
  StoreNumber<uint64_t>(SipHash(key, out, kTagAt, out, 0), out + kTagAt);
}

inline bool IsSealed(const std::byte* in, const SipKey& key) {
  return LoadNumber<uint64_t>(in + fabric_head::kTagAt) == SipHash(key, in, fabric_head::kTagAt, in, 0);
}

inline FabricHead DecodeHead(const std::byte* in) {
  using namespace fabric_head;
  return {LoadNumber<uint16_t>(in + kProcessAt),
          LoadNumber<uint32_t>(in + kNumberAt),
          LoadNumber<uint16_t>(in + kArrivedAt),
          {LoadNumber<uint16_t>(in + kFreedAt), LoadNumber<uint16_t>(in + kFreedAt + 2)}};
}

}  // namespace jaxcomm

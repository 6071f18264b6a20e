// The frame of a message of which some may get lost (PacketKind::kLossy): its header, what may be lost, which spans are
// important, and then the bytes of the important spans before those of the others.
//
//   std::vector<std::byte> front = EncodeLossy(header, lossy);
//   Result<Lossy> lossy = DecodeLossy(front, size, frame_bytes);   // an error: none that EncodeLossy has written
//   spans = ImportantFirst(std::move(spans), lossy.important);
//
// The front is in the frame's first packet. Its size is a multiple of 8, as the packets' are, so that no element is
// divided between two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/frame.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Lossy {
  uint32_t reliable = 0;        // bytes of the frame, from its beginning, that must come
  uint32_t may_lose = 0;        // bytes of the others at most
  std::vector<bool> important;  // by span
};

// Bytes of the front for `spans` spans.
size_t LossyFrontBytes(size_t spans);

std::vector<std::byte> EncodeLossy(const Header& header, const Lossy& lossy);
// `front`: the first `size` bytes of a frame of `bytes`.
Result<Lossy> DecodeLossy(const std::byte* front, size_t size, uint32_t bytes);

template <typename Byte>
std::vector<BasicSpan<Byte>> ImportantFirst(const std::vector<BasicSpan<Byte>>& spans,
                                            const std::vector<bool>& important) {
  std::vector<BasicSpan<Byte>> ordered;
  ordered.reserve(spans.size());
  for (const bool first : {true, false}) {
    for (size_t i = 0; i < spans.size(); ++i) {
      if (important[i] == first) ordered.push_back(spans[i]);
    }
  }
  return ordered;
}

}  // namespace jaxcomm

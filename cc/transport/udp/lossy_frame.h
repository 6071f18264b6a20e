// The frame of a message that may lose a part (PacketKind::kLossy). It contains, in this order: the header; the number
// of leading bytes that must arrive; the number of later bytes that may be lost; the number of spans; one bit for each
// span, set if the span is important; the bytes of the important spans; and the bytes of the other spans.
//
//   std::vector<std::byte> front = EncodeLossy(header, lossy);
//   Result<Lossy> lossy = DecodeLossy(front, size, frame_bytes);   // an error if EncodeLossy did not write `front`
//   spans = ImportantFirst(std::move(spans), lossy.important);
//
// The front of a frame is everything before the bytes of the spans. The frame's first packet holds the whole front. The
// sizes of the front and of the fragments are multiples of 8, so that no element is split between packets.
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
  uint32_t reliable = 0;        // number of leading bytes of the frame that must arrive
  uint32_t may_lose = 0;        // maximum number of bytes after the reliable bytes that may be lost
  std::vector<bool> important;  // `important[i]`: whether span i must arrive
};

size_t LossyFrontBytes(size_t spans);

std::vector<std::byte> EncodeLossy(const Header& header, const Lossy& lossy);
// `front`: the first `size` bytes of a frame of `bytes` bytes.
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

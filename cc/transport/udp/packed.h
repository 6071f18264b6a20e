// Visits the bytes of spans as if the spans were contiguous.
//
//   PackedCursor cursor;
//   VisitPacked(spans, offset, bytes, &cursor, [](std::byte* data, int64_t size, int64_t at) { ... });
//
// The parts are visited in order. `at` is the offset of `data` in the message. The cursor remembers where the last
// visit ended, so that the next bytes are found at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

struct PackedCursor {
  size_t span = 0;
  int64_t at = 0;  // number of bytes in the spans before `span`
};

template <typename Byte, typename Visit>
void VisitPacked(const std::vector<BasicSpan<Byte>>& spans, int64_t offset, int64_t bytes, PackedCursor* cursor,
                 const Visit& visit) {
  if (offset < cursor->at) *cursor = PackedCursor();
  while (bytes > 0 && cursor->span < spans.size()) {
    const BasicSpan<Byte>& span = spans[cursor->span];
    const int64_t skipped = offset - cursor->at, size = std::min(bytes, span.bytes - skipped);
    if (size > 0) {
      visit(span.data + skipped, size, span.at + skipped);
      offset += size;
      bytes -= size;
    }
    if (bytes == 0) return;
    cursor->at += span.bytes;
    ++cursor->span;
  }
}

}  // namespace jaxcomm

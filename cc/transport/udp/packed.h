// The bytes that spans carry, as if they lay one behind the other.
//
//   PackedCursor cursor;                                    // remembers where it was: what follows is found at once
//   VisitPacked(spans, offset, bytes, &cursor, [](std::byte* data, int64_t size, int64_t at) { ... });   // in order
//
// `at`: the byte of the message that `data` is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

struct PackedCursor {
  size_t span = 0;
  int64_t at = 0;  // bytes before that span
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

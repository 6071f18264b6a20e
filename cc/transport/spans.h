// The bytes of a message that lie in several spans.
//
//   const Extent extent = Measure(spans);   // sender's and receiver's must be equal
//   Gather(spans, extent.at, memory);       // spans to memory that begins with byte extent.at of the message
//   Scatter(memory, extent.at, spans);      // and back
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/transport/transport.h"

namespace jaxcomm {

struct Extent {
  int64_t at = 0;       // the first byte
  int64_t bytes = 0;    // gaps included
  int64_t carried = 0;  // without them

  bool operator==(const Extent& other) const {
    return at == other.at && bytes == other.bytes && carried == other.carried;
  }
};

template <typename Byte>
Extent Measure(const std::vector<BasicSpan<Byte>>& spans) {
  Extent extent;
  for (const BasicSpan<Byte>& span : spans) {
    if (span.bytes == 0) continue;
    if (extent.carried == 0) extent.at = span.at;
    extent.bytes = span.at + span.bytes - extent.at;
    extent.carried += span.bytes;
  }
  return extent;
}

inline void Gather(const std::vector<ConstSpan>& spans, int64_t at, std::byte* to) {
  for (const ConstSpan& span : spans) {
    if (span.bytes != 0) std::memcpy(to + (span.at - at), span.data, static_cast<size_t>(span.bytes));
  }
}

inline void Scatter(const std::byte* from, int64_t at, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.bytes != 0) std::memcpy(span.data, from + (span.at - at), static_cast<size_t>(span.bytes));
  }
}

}  // namespace jaxcomm

// Checks the spans of a message, and copies bytes to and from spans.
//
//   Result<int64_t> bytes = CheckSpans(spans);   // number of bytes sent, or an error if the spans are invalid
//   const Extent extent = Measure(spans);        // must be equal for the sender and the receiver
//   Gather(spans, extent.at, memory);            // from spans; `memory` begins with byte extent.at
//   Scatter(memory, extent.at, spans);           // from `memory` back to spans
//   CopyBytes(to, from, bytes);                  // for one span
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/text.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Returns the number of bytes sent: the bytes of the spans, without the gaps.
template <typename Byte>
Result<int64_t> CheckSpans(const std::vector<BasicSpan<Byte>>& spans) {
  int64_t bytes = 0, end = 0;
  for (const BasicSpan<Byte>& span : spans) {
    if (span.bytes < 0 || span.at < end || span.at > Transport::kMaxMessage ||
        span.bytes > Transport::kMaxMessage - span.at) {
      return InvalidArgument("a message has a span of " + std::to_string(span.bytes) + " bytes at " +
                             std::to_string(span.at) + " after one that ends at " + std::to_string(end) +
                             "; spans must ascend and end before " + FormatBytes(Transport::kMaxMessage));
    }
    bytes += span.bytes;
    end = span.at + span.bytes;
  }
  return bytes;
}

// Returns whether there is a gap before or between the spans.
inline bool HasGaps(const std::vector<Span>& spans) {
  int64_t end = 0;
  for (const Span& span : spans) {
    if (span.at != end) return true;
    end += span.bytes;
  }
  return false;
}

// Copies as std::memcpy does, but in blocks if the page offset of `to` is 1 to 63 bytes above the page offset of
// `from`. At such offsets, the instruction `rep movsb`, which std::memcpy uses for large arrays, takes ten times as
// long on some processors. Such offsets are common for arrays that follow a small array in a call.
inline void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  const uintptr_t behind = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % 4096;
  const int64_t block = behind > 0 && behind < 64 ? 1024 : bytes;
  for (int64_t at = 0; at < bytes; at += block) {
    std::memcpy(to + at, from + at, static_cast<size_t>(std::min(block, bytes - at)));
  }
}

// Fills the spans from memory that holds their bytes contiguously.
inline void ScatterPacked(const std::byte* from, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    CopyBytes(span.data, from, span.bytes);
    from += span.bytes;
  }
}

struct Extent {
  int64_t at = 0;       // offset, in the message, of the first byte in the spans
  int64_t bytes = 0;    // number of bytes, gaps included
  int64_t carried = 0;  // number of bytes without gaps

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
    CopyBytes(to + (span.at - at), span.data, span.bytes);
  }
}

inline void Scatter(const std::byte* from, int64_t at, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    CopyBytes(span.data, from + (span.at - at), span.bytes);
  }
}

}  // namespace jaxcomm

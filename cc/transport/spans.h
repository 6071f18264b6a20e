// The spans of a message: checks, and copies to and from them.
//
//   Result<int64_t> bytes = CheckSpans(spans);   // that are carried, or an error of the spans
//   const Extent extent = Measure(spans);        // sender's and receiver's must be equal
//   Gather(spans, extent.at, memory);            // spans to memory that begins with byte extent.at of the message
//   Scatter(memory, extent.at, spans);           // and back
//   CopyBytes(to, from, bytes);                  // one span
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

// The bytes that are carried: all but the gaps.
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

// Whether some byte `at` of the message is not byte `at` of the carried bytes.
inline bool HasGaps(const std::vector<Span>& spans) {
  int64_t end = 0;
  for (const Span& span : spans) {
    if (span.at != end) return true;
    end += span.bytes;
  }
  return false;
}

// As std::memcpy, which copies many bytes with an instruction (rep movsb) that takes ten times as long on some
// processors where the destination lies just behind the source in its page, as the arrays of a call do that follow a
// small one.
inline void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  const uintptr_t behind = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % 4096;
  const int64_t block = behind > 0 && behind < 64 ? 1024 : bytes;
  for (int64_t at = 0; at < bytes; at += block) {
    std::memcpy(to + at, from + at, static_cast<size_t>(std::min(block, bytes - at)));
  }
}

// To spans from memory that holds their bytes one after the other.
inline void ScatterPacked(const std::byte* from, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    CopyBytes(span.data, from, span.bytes);
    from += span.bytes;
  }
}

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
    CopyBytes(to + (span.at - at), span.data, span.bytes);
  }
}

inline void Scatter(const std::byte* from, int64_t at, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    CopyBytes(span.data, from + (span.at - at), span.bytes);
  }
}

}  // namespace jaxcomm

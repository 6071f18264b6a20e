// What kinds of transport have in common about the spans of a message.
//
//   Result<int64_t> bytes = CheckSpans(spans);      // of the message, or what is wrong with the spans
//   Scatter(packed, spans);                         // the bytes that they hold, one after the other, into them
#pragma once

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

// Whether byte `at` of the message is byte `at` of what is carried.
inline bool HasGaps(const std::vector<Span>& spans) {
  int64_t end = 0;
  for (const Span& span : spans) {
    if (span.at != end) return true;
    end += span.bytes;
  }
  return false;
}

inline void Scatter(const std::byte* from, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.bytes) std::memcpy(span.data, from, static_cast<size_t>(span.bytes));
    from += span.bytes;
  }
}

}  // namespace jaxcomm

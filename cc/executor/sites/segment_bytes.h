// The sizes of the segments in which a message is sent, in bytes.
#pragma once

#include <cstdint>

namespace jaxcomm {

// The largest segment within a host. It is so large that starting a segment takes little time compared to moving the
// segment, and so small that the rounds of a schedule overlap.
inline constexpr int64_t kSegmentBytes = 256 << 10;
// Between hosts, a chunk has at least two segments, unless these would be shorter than kShortestSegment. A rank then
// forwards its first partial sums while later segments are still arriving, so the wire is never idle. Lossy messages
// have segments of kSegmentBytes between hosts, too: short segments waste their loss budget, because only whole packets
// can be dropped.
inline constexpr int64_t kShortestSegment = 64 << 10;
// The largest segment of a lossless message between hosts. It is smaller than kSegmentBytes, so that the numbers of
// segments on rails of different speeds can match the rails' speeds. With rails of speeds 4 : 2 : 1, for instance, a 4
// MiB message in 16 segments is divided 9 : 5 : 2, and in 32 segments it is divided 19 : 9 : 4.
inline constexpr int64_t kLongestBetweenHosts = 128 << 10;

}  // namespace jaxcomm

// The sizes of the segments in which a message is sent, in bytes.
#pragma once

#include <cstdint>

namespace jaxcomm {

// Segments within a host. They are so long that starting a segment costs little compared to moving it, and so short
// that rounds overlap.
inline constexpr int64_t kSegmentBytes = 256 << 10;
// Between hosts, a chunk has at least two segments, unless these would be shorter than kShortestSegment. A rank then
// forwards its first partial sums while later segments are still arriving, so the wire is never idle. Lossy messages
// are not divided: short messages waste their loss budget, because only whole packets can be dropped.
inline constexpr int64_t kShortestSegment = 64 << 10;
// Segments between hosts are shorter than within a host, so that the rails' shares can match the speeds of unlike
// rails. With rails of speeds 4 : 2 : 1, for instance, a 4 MiB message in 16 segments is divided 9 : 5 : 2, and in 32
// segments 19 : 9 : 4.
inline constexpr int64_t kLongestBetweenHosts = 128 << 10;

}  // namespace jaxcomm

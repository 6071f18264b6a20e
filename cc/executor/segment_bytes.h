// The sizes of the segments in which a message is sent, in bytes.
#pragma once

#include <cstdint>

namespace jaxcomm {

// Long enough that starting it costs little beside moving it, short enough that rounds overlap.
inline constexpr int64_t kSegmentBytes = 256 << 10;
// Between hosts a chunk has two segments at least, unless they would be shorter: what a rank adds of the first ones
// goes out before the last ones have come, and the wire is never idle. Messages that may lose some stay whole: the
// shorter one is, the less of what it may lose makes up whole packets.
inline constexpr int64_t kShortestSegment = 64 << 10;
// Shorter than within a host, so that rails which differ can have what they are fast enough for: 4 MiB in 16 segments
// are divided 9 : 5 : 2 over rails of 4 : 2 : 1, and in 32 segments 19 : 9 : 4.
inline constexpr int64_t kLongestBetweenHosts = 128 << 10;

}  // namespace jaxcomm

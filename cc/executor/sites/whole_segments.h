// The segments of a leaf that lie entirely in a range of a layout. The last segment of a leaf may be shorter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/executor/calls/layout.h"

namespace jaxcomm {

struct WholeSegments {
  size_t leaf = 0;
  int64_t first = 0, count = 0;  // the index of the first segment in the leaf, and the number of segments
};

// `begin` and `end` are offsets in the layout. The bytes between them belong to one leaf.
inline WholeSegments FindWholeSegments(const Layout& layout, int64_t begin, int64_t end, int64_t segment_bytes) {
  WholeSegments found;
  layout.ForEach(begin, end, [&](size_t leaf, int64_t offset, int64_t bytes) {
    const int64_t rest = offset + bytes == layout.leaves()[leaf].bytes ? segment_bytes - 1 : 0;
    found.leaf = leaf;
    found.first = (offset + segment_bytes - 1) / segment_bytes;
    found.count = std::max<int64_t>(0, (offset + bytes + rest) / segment_bytes - found.first);
  });
  return found;
}

}  // namespace jaxcomm

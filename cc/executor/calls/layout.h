// Places the leaves of a pytree in one range of bytes, so that one collective handles the whole pytree without packing.
//
//   Layout layout({{DType::kF32, 4000}, {DType::kBF16, 6}});
//   layout.ForEach(begin, end, [](size_t leaf, int64_t offset, int64_t bytes) { ... });
//
// Leaves follow each other. Each leaf begins at a multiple of 64 bytes, and the gaps between leaves hold nothing. Chunk
// bounds are multiples of 64 bytes, too, so that no element and no cache line is split. The last chunk ends after the
// last leaf, so no bytes are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/kernels/reduce.h"

namespace jaxcomm {

struct Leaf {
  DType dtype;
  int64_t bytes;
};

class Layout {
 public:
  static constexpr int64_t kAlignment = 64;

  explicit Layout(std::vector<Leaf> leaves);

  const std::vector<Leaf>& leaves() const { return leaves_; }
  int64_t payload() const { return payload_; }  // bytes of all leaves
  int64_t extent() const { return starts_.back(); }
  int64_t Start(size_t leaf) const { return starts_[leaf]; }

  // Returns the offsets in (begin, end) at which leaves begin.
  std::vector<int64_t> StartsIn(int64_t begin, int64_t end) const {
    return {std::upper_bound(starts_.begin(), starts_.end() - 1, begin),
            std::lower_bound(starts_.begin(), starts_.end() - 1, end)};
  }

  // Chunk c of k chunks is the range [Bound(c, k), Bound(c + 1, k)).
  int64_t Bound(uint32_t chunk, uint32_t chunks) const;

  // Calls visit(leaf, offset in the leaf, bytes) for every part of a leaf in [begin, end), in order.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const {
    auto next = std::upper_bound(starts_.begin(), starts_.end(), begin);
    for (size_t leaf = static_cast<size_t>(next - starts_.begin()) - 1; leaf < leaves_.size(); ++leaf) {
      if (starts_[leaf] >= end) return;
      const int64_t from = std::max<int64_t>(begin - starts_[leaf], 0);
      const int64_t to = std::min(end - starts_[leaf], leaves_[leaf].bytes);
      if (from < to) visit(leaf, from, to - from);
    }
  }

 private:
  std::vector<Leaf> leaves_;
  std::vector<int64_t> starts_;  // the offset of each leaf, then the number of bytes of all leaves and gaps
  int64_t payload_ = 0;
};

}  // namespace jaxcomm

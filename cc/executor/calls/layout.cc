#include "cc/executor/calls/layout.h"

#include <utility>

namespace jaxcomm {
namespace {

int64_t AlignUp(int64_t bytes) { return (bytes + Layout::kAlignment - 1) / Layout::kAlignment * Layout::kAlignment; }

}  // namespace

Layout::Layout(std::vector<Leaf> leaves) : leaves_(std::move(leaves)), starts_{0} {
  for (const Leaf& leaf : leaves_) {
    payload_ += leaf.bytes;
    starts_.push_back(AlignUp(starts_.back() + leaf.bytes));
  }
}

int64_t Layout::Bound(uint32_t chunk, uint32_t chunks) const {
  // Computes in lines of 64 bytes, because a product of byte counts could overflow: with 2^24 chunks, extent() * chunk
  // overflows for buffers beyond 512 GiB.
  const int64_t lines = extent() / kAlignment;
  return (lines * chunk + chunks - 1) / chunks * kAlignment;
}

}  // namespace jaxcomm

// Which bytes of a pytree go over which rail.
//
//   std::vector<std::vector<Piece>> cut = Cut(layout, {0.75, 0.25});   // of each rail: its parts of leaves, in order
//
// Every byte is on exactly one rail. Rails end at multiples of 64 bytes of the layout, the same on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/executor/layout.h"

namespace jaxcomm {

struct Piece {
  size_t leaf;
  int64_t offset;
  int64_t bytes;
};

// `shares` are finite, none is negative, and one at least is positive; only their ratios count.
std::vector<std::vector<Piece>> Cut(const Layout& layout, const std::vector<double>& shares);

}  // namespace jaxcomm

// The memory of a rank's call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxcomm {

// One rank's operands and results, with one pointer per leaf. In an in-place all-reduce, both have the same pointers.
struct Buffers {
  std::vector<const std::byte*> operands;
  std::vector<std::byte*> results;
  // The operand before the leaves, or null. If groups change from call to call, it is int32[ranks], the group of every
  // rank. If packets may be lost, it has a byte for each segment of each leaf; the byte is not 0 if the segment must
  // arrive.
  const std::byte* leading = nullptr;
  // Whether any thread may run `done`, because `done` only wakes a thread.
  bool done_is_quick = false;
};

}  // namespace jaxcomm

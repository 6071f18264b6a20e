// The memory of a rank's call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jaxcomm {

// One rank's operands and results, with one pointer per leaf. In an in-place all-reduce, the operands and the results
// have the same pointers.
struct Buffers {
  std::vector<const std::byte*> operands;
  std::vector<std::byte*> results;
  // The operand that precedes the leaves; null if the call has no such operand. In calls whose groups change:
  // int32[ranks], the group number of every rank. In calls that may lose packets: one byte per segment of each leaf,
  // nonzero if the segment must arrive.
  const std::byte* leading = nullptr;
  // The result that belongs to `leading`, in the same memory or in memory of its own. In calls that report lost
  // segments: one byte per segment of each leaf, which is 1 if the rank's own segment is missing in the sum, otherwise
  // 0.
  std::byte* leading_result = nullptr;
  // Whether `done` only wakes a thread. If so, any thread may run `done`.
  bool done_is_quick = false;
};

}  // namespace jaxcomm

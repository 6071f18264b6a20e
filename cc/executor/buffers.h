// The memory of a rank's call, and the callback at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm {

// One rank's operands and results, one pointer per leaf; of an all-reduce in place they are the same.
struct Buffers {
  std::vector<const std::byte*> operands;
  std::vector<std::byte*> results;
  // An operand before the leaves: int32[ranks], the group of every rank, where groups change from call to call; or,
  // where packets may be lost, for each segment of each leaf a byte, not 0 if the segment must arrive. Null: neither.
  const std::byte* leading = nullptr;
  // Whether `done` only wakes a thread, so that any thread may run it.
  bool done_is_quick = false;
};

using Done = std::function<void(const Status&)>;

struct Completion {
  uint32_t rank;
  Done done;
  Status status;
  bool is_quick = false;
};

}  // namespace jaxcomm

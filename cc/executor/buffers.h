// What a rank brings to a call.
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
  // Where the call may lose some: for each segment of each leaf a byte, which is not 0 if it must not get lost.
  const std::byte* important = nullptr;
  // Whether `done` only wakes somebody: any thread may run it.
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

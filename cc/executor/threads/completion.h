// The callback at the end of a rank's call.
#pragma once

#include <cstdint>
#include <functional>

#include "cc/base/status.h"

namespace jaxcomm {

using Done = std::function<void(const Status&)>;

struct Completion {
  uint32_t rank;
  Done done;
  Status status;
  bool is_quick = false;
};

}  // namespace jaxcomm

// A process that has ended and sends nothing more.
#pragma once

#include <cstdint>
#include <optional>

#include "cc/base/status.h"
#include "cc/executor/threads/timer.h"

namespace jaxcomm {

struct GoneProcess {
  struct Cause {
    uint32_t process;
    Status why;
  };

  uint32_t process;
  Status why;
  bool has_left;  // the process left the job deliberately
  Clock::time_point since;
  // Set if `process` reported the earlier end of another process before it left.
  std::optional<Cause> cause = std::nullopt;
};

}  // namespace jaxcomm

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
  // The other process whose end made `process` leave the job; nullopt if there is no such process.
  std::optional<Cause> cause = std::nullopt;
};

}  // namespace jaxcomm

// A message that is being sent to one or more processes.
#pragma once

#include <cstddef>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Outgoing {
  CallId call;
  std::vector<ConstSpan> spans;
  size_t receivers;  // number of unfinished receivers
  Status status;     // error of a finished receiver, or OK
  Sent done;
};

}  // namespace jaxcomm

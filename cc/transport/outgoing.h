// A message that is being sent: the same bytes for several processes.
#pragma once

#include <cstddef>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Outgoing {
  CallId call;
  std::vector<ConstSpan> spans;
  size_t receivers;  // that are not done
  Status status;     // of the receivers that are done
  Sent done;
};

}  // namespace jaxcomm

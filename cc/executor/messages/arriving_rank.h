// A rank of this process that is joining a call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/executor/sites/message_site.h"
#include "cc/executor/threads/completion.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct ArrivingRank {
  std::shared_ptr<const MessageSite> site;
  CallId id;
  uint32_t rank;
  Buffers buffers;
  Done done;
  Clock::time_point at;
  Status refused;  // not ok: the call fails on all ranks
  // The decision to announce to the other processes, if this rank has decided its call.
  std::optional<ScheduleSelector::Decision> decision = std::nullopt;
};

}  // namespace jaxcomm

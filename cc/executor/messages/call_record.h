// The record of a call that was completed without messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/executor/calls/call_site_stats.h"
#include "cc/executor/messages/call_names.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Returns the record of a call that ends now. `arrivals`: by rank.
inline CallRecord RecordOf(const std::vector<Clock::time_point>& arrivals, const CallId& id, int64_t number) {
  const auto [first, last] = std::minmax_element(arrivals.begin(), arrivals.end());
  CallRecord record;
  record.call = {HashOf(id), number, *first};
  record.arrivals.reserve(arrivals.size());
  for (const Clock::time_point at : arrivals) record.arrivals.push_back(Seconds(at - *first));
  record.last = {static_cast<uint32_t>(last - arrivals.begin())};
  record.after_arrival = Seconds(Clock::now() - *last);
  return record;
}

}  // namespace jaxcomm

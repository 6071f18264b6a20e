// The arrivals of other processes' ranks at calls that have not begun here.
//
//   early.Keep(id, {process, arrival, Clock::now()});
//   for (const PeerArrival& peer : early.Take(id)) ...   // when the call begins; in order of arrival
//
// Keeps at most kMost arrivals. When this number is exceeded, forgets all arrivals at the oldest call. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cc/executor/messages/notices.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct PeerArrival {
  uint32_t process;
  Arrival arrival;
  Clock::time_point at;
};

class EarlyArrivals {
 public:
  static constexpr size_t kMost = 1 << 16;

  void Keep(const CallId& id, PeerArrival arrival) {
    const auto [call, is_new] = calls_.try_emplace(id);
    if (is_new) {
      call->second.order = next_++;
      order_.emplace(call->second.order, id);
    }
    call->second.arrivals.push_back(std::move(arrival));
    if (++count_ > kMost) Take(order_.begin()->second);
  }

  std::vector<PeerArrival> Take(const CallId& id) {
    const auto call = calls_.find(id);
    if (call == calls_.end()) return {};
    std::vector<PeerArrival> arrivals = std::move(call->second.arrivals);
    count_ -= arrivals.size();
    order_.erase(call->second.order);
    calls_.erase(call);
    return arrivals;
  }

  bool Has(const CallId& id) const { return calls_.count(id) > 0; }
  template <typename Visit>
  void Each(const CallId& id, Visit visit) const {
    const auto call = calls_.find(id);
    if (call != calls_.end()) std::for_each(call->second.arrivals.begin(), call->second.arrivals.end(), visit);
  }

 private:
  struct Call {
    uint64_t order = 0;
    std::vector<PeerArrival> arrivals;
  };

  std::map<CallId, Call> calls_;
  std::map<uint64_t, CallId> order_;
  uint64_t next_ = 0;
  size_t count_ = 0;
};

}  // namespace jaxcomm

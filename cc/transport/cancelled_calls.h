// The calls that were cancelled last: what still comes of them is dropped.
//
//   cancelled.Add(call);
//   if (cancelled.Contains(id.call)) return;
//
// All kinds of transport remember kRemembered calls, in 2 MiB at most. A message that comes even later is early for
// ever, and counts as such. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

#include "cc/transport/transport.h"

namespace jaxcomm {

struct HashCallId {
  size_t operator()(const CallId& call) const {
    uint64_t hash = call.communicator;
    for (const uint64_t word : {uint64_t{call.launch}, uint64_t{call.site}, uint64_t{call.iteration}}) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

class CancelledCalls {
 public:
  static constexpr size_t kRemembered = 1 << 14;

  void Add(const CallId& call) {
    if (!set_.insert(call).second) return;
    order_.push_back(call);
    if (order_.size() <= kRemembered) return;
    set_.erase(order_.front());
    order_.pop_front();
  }
  bool Contains(const CallId& call) const { return set_.count(call) != 0; }

 private:
  std::unordered_set<CallId, HashCallId> set_;
  std::deque<CallId> order_;
};

}  // namespace jaxcomm

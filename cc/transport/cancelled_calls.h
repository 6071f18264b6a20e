// The most recently cancelled calls. Transports drop messages that arrive for these calls.
//
//   cancelled.Add(call);
//   if (cancelled.Contains(id.call)) return;
//
// Every transport remembers kRemembered calls, which take at most 2 MiB. A message that arrives after its call was
// forgotten is kept for ever as an early message. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "cc/base/bounded_map.h"
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

  void Add(const CallId& call) { calls_.Add(call); }
  bool Contains(const CallId& call) const { return calls_.Find(call) != nullptr; }

 private:
  struct Nothing {};

  BoundedMap<CallId, Nothing, std::unordered_map<CallId, Nothing, HashCallId>> calls_{kRemembered};
};

}  // namespace jaxcomm

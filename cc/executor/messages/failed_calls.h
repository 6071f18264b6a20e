// The errors of calls that have failed, here or in another process.
//
//   failed.Add(id, why, step);
//   Status status = failed.Find(id);   // ok if neither the call nor another call of its launch has failed
//   bool missed = failed.IsMissed(id, step);
//
// Keeps the newest kRemembered calls. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/bounded_map.h"
#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class FailedCalls {
 public:
  static constexpr size_t kRemembered = 1024;

  // `step`: a hash of the step that has the call.
  void Add(const CallId& id, const Status& why, uint64_t step) { calls_.Add(id, {why, step}); }

  Status Find(const CallId& id) const {
    if (const Failed* const same = calls_.Find(id)) return same->why;
    const auto first = First(id);
    return IsOfLaunch(first, id) ? first->second.why : Status();
  }

  // Whether this process has skipped the launch with `id`'s number and now launches `step` under that number. This
  // holds if calls of that launch have failed, and if all of these failed calls belong to other steps and exceeded
  // their deadline.
  bool IsMissed(const CallId& id, uint64_t step) const {
    auto at = First(id);
    if (!IsOfLaunch(at, id)) return false;
    for (; IsOfLaunch(at, id); ++at) {
      if (at->second.step == step || at->second.why.code() != Code::kDeadlineExceeded) return false;
    }
    return true;
  }

 private:
  struct Failed {
    Status why;
    uint64_t step;
  };
  using Calls = BoundedMap<CallId, Failed>;

  Calls::const_iterator First(const CallId& id) const { return calls_.lower_bound({id.communicator, id.launch, 0, 0}); }
  bool IsOfLaunch(Calls::const_iterator at, const CallId& id) const {
    return at != calls_.end() && at->first.communicator == id.communicator && at->first.launch == id.launch;
  }

  Calls calls_{kRemembered};
};

}  // namespace jaxcomm

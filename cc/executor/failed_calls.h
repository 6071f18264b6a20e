// Which calls have failed, here or in another process, and why.
//
//   failed.Add(id, why, step);
//   Status status = failed.Find(id);   // of a call that begins; ok: neither it nor another of its launch has failed
//   bool missed = failed.IsMissed(id, step);
//
// Remembers kRemembered calls. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class FailedCalls {
 public:
  static constexpr size_t kRemembered = 1024;

  // `step`: a hash of the step whose call it was.
  void Add(const CallId& id, const Status& why, uint64_t step) {
    if (!calls_.emplace(id, Failed{why, step}).second) return;
    order_.push_back(id);
    if (order_.size() <= kRemembered) return;
    calls_.erase(order_.front());
    order_.pop_front();
  }

  Status Find(const CallId& id) const {
    if (const auto same = calls_.find(id); same != calls_.end()) return same->second.why;
    const auto first = First(id);
    return IsOfLaunch(first, id) ? first->second.why : Status();
  }

  // Whether other processes waited for this one in the launch of another step, until the deadline.
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
  using Calls = std::map<CallId, Failed>;

  Calls::const_iterator First(const CallId& id) const { return calls_.lower_bound({id.communicator, id.launch, 0, 0}); }
  bool IsOfLaunch(Calls::const_iterator at, const CallId& id) const {
    return at != calls_.end() && at->first.communicator == id.communicator && at->first.launch == id.launch;
  }

  Calls calls_;
  std::deque<CallId> order_;
};

}  // namespace jaxcomm

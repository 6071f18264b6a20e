// Which calls have failed, here or in another process, and why.
//
//   failed.Add(id, why);
//   Status status = failed.Find(id);   // of a call that begins; ok: neither it nor another of its launch has failed
//
// A process that could not launch a module counts one launch less than the others. When it launches again, the calls of
// the launch that the others have given up fail at once, and the launch after that is one for all.
//
// Remembers kRemembered calls. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <map>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class FailedCalls {
 public:
  static constexpr size_t kRemembered = 1024;

  void Add(const CallId& id, const Status& why) {
    if (!calls_.emplace(id, why).second) return;
    order_.push_back(id);
    if (order_.size() <= kRemembered) return;
    calls_.erase(order_.front());
    order_.pop_front();
  }

  Status Find(const CallId& id) const {
    if (const auto same = calls_.find(id); same != calls_.end()) return same->second;
    const auto launch = calls_.lower_bound({id.module, id.launch, 0, 0});
    const bool failed =
        launch != calls_.end() && launch->first.module == id.module && launch->first.launch == id.launch;
    return failed ? launch->second : Status();
  }

 private:
  std::map<CallId, Status> calls_;
  std::deque<CallId> order_;
};

}  // namespace jaxcomm

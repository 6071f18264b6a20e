// Launches of which a call has failed, here or in another process, and why.
//
//   failed.Add(id, why);
//   Status status = failed.Find(id);   // of a call that begins; ok: none of its launch has failed
//
// A process that could not launch a module counts one launch less than the others. When it launches again, the calls of
// the launch that the others have given up fail at once, and the launch after that is one for all.
//
// Remembers kRemembered launches. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class FailedLaunches {
 public:
  static constexpr size_t kRemembered = 1024;

  void Add(const CallId& id, const Status& why) {
    if (!launches_.emplace(Launch(id.module, id.launch), why).second) return;
    order_.push_back({id.module, id.launch});
    if (order_.size() <= kRemembered) return;
    launches_.erase(order_.front());
    order_.pop_front();
  }

  Status Find(const CallId& id) const {
    const auto launch = launches_.find({id.module, id.launch});
    return launch == launches_.end() ? Status() : launch->second;
  }

 private:
  using Launch = std::pair<uint64_t, uint32_t>;  // of a module

  std::map<Launch, Status> launches_;
  std::deque<Launch> order_;
};

}  // namespace jaxcomm

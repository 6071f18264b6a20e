// A queue of the due callbacks, in the order in which they were pushed.
//
//   callbacks.Push(id.call, [done, status] { done(status); });
//   while (!callbacks.empty()) callbacks.Begin()();   // release the lock while a callback runs
//   callbacks.End();                                  // after each callback
//
// Not thread-safe: guarded by the lock of the transport.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "cc/transport/transport.h"

namespace jaxcomm {

class Callbacks {
 public:
  // `call`: the call that the callback belongs to, or nullopt if the callback reports an event.
  void Push(const std::optional<CallId>& call, std::function<void()> run) { due_.push_back({call, std::move(run)}); }

  std::function<void()> Begin() {
    std::function<void()> run = std::move(due_.front().run);
    due_.pop_front();
    ++running_;
    return run;
  }
  void End() { --running_; }

  void Drop(const CallId& call) {
    std::deque<Due> kept;
    for (Due& due : due_) {
      if (!(due.call && *due.call == call)) kept.push_back(std::move(due));
    }
    due_.swap(kept);
  }

  bool empty() const { return due_.empty(); }
  bool running() const { return running_ > 0; }

 private:
  struct Due {
    std::optional<CallId> call;
    std::function<void()> run;
  };

  std::deque<Due> due_;
  int running_ = 0;
};

}  // namespace jaxcomm

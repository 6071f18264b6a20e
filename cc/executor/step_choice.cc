#include "cc/executor/step_choice.h"

namespace jaxcomm {
namespace {

// The call whose decider announced this one: that of the iteration before, or of the launch before the first one.
std::optional<CallId> Before(CallId call) {
  if (call.iteration > 0) {
    --call.iteration;
  } else if (call.launch > 0) {
    --call.launch;
  } else {
    return std::nullopt;
  }
  return call;
}

}  // namespace

StepChoice::Said StepChoice::Decide(const CallId& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Said said{FindLocked(call).value_or(false), is_other_};
  Keep(call, said);
  return said;
}

void StepChoice::Heard(const CallId& call, Said said) {
  std::lock_guard<std::mutex> lock(mutex_);
  Keep(call, said);
}

std::optional<bool> StepChoice::Find(const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(call);
}

StepChoice::Said StepChoice::SaidAt(const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = said_.find(call);
  return at == said_.end() ? Said() : at->second;
}

std::optional<bool> StepChoice::FindLocked(const CallId& call) const {
  if (const auto at = said_.find(call); at != said_.end()) return at->second.here;
  const std::optional<CallId> before = Before(call);
  if (!before) return false;
  const auto at = said_.find(*before);
  return at == said_.end() ? std::nullopt : std::optional<bool>(at->second.next);
}

void StepChoice::Keep(const CallId& call, Said said) {
  if (!said_.emplace(call, said).second) return;
  std::deque<CallId>& order = call.iteration == 0 ? firsts_ : others_;
  order.push_back(call);
  if (order.size() > kCalls) {
    said_.erase(order.front());
    order.pop_front();
  }
}

}  // namespace jaxcomm

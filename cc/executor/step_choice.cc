#include "cc/executor/step_choice.h"

namespace jaxcomm {

StepChoice::Said StepChoice::Decide(const CallId& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (call.iteration == 0) {
    launches_ = call.launch > launch_ ? call.launch - launch_ : 1;
    launch_ = call.launch;
  }
  const Said said{FindLocked(call).value_or(false), is_other_, launches_};
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

std::optional<bool> StepChoice::FindLocked(const CallId& call) const {
  const bool* is_other = here_.Find(call);
  if (!is_other) is_other = (call.iteration == 0 ? next_launch_ : next_).Find(call);
  return is_other ? std::optional<bool>(*is_other) : std::nullopt;
}

void StepChoice::Keep(const CallId& call, Said said) {
  here_.Add(call, said.here);
  next_.Add({call.communicator, call.launch, call.site, call.iteration + 1}, said.next);
  if (call.iteration == 0) next_launch_.Add({call.communicator, call.launch + said.launches, call.site, 0}, said.next);
}

}  // namespace jaxcomm

#include "cc/executor/step_choice.h"

namespace jaxcomm {

bool StepChoice::Next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stats_) stats_->trial().Decide();
  return RunsDefault(begun_++) || is_other_;
}

StepChoice::Said StepChoice::Decide(const CallId& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (call.iteration == 0) {
    launches_ = call.launch > launch_ ? call.launch - launch_ : 1;
    launch_ = call.launch;
  }
  const Trial::Outcome outcome = stats_ ? stats_->trial().Decide() : Trial::Outcome::kOpen;
  const bool here = FindLocked(call).value_or(RunsDefault(begun_++));
  const Said said{here, RunsDefault(begun_) || is_other_, launches_, outcome};
  Keep(call, said);
  return said;
}

void StepChoice::Heard(const CallId& call, Said said) {
  std::lock_guard<std::mutex> lock(mutex_);
  Keep(call, said);
  if (!stats_ || call < heard_) return;
  heard_ = call;
  stats_->trial().Follow(said.outcome);
}

bool StepChoice::RunsDefault(uint32_t call) const { return stats_ && stats_->trial().RunsDefault(call); }

// The call before, whose cycle ends with this one's last arrival.
void StepChoice::Record(const Ended& call) {
  if (ended_++ > Trial::kWarmUp && !latest_.is_on_time) {
    stats_->trial().Record(latest_.is_other, {latest_.transfer, Seconds(call.last - latest_.last)});
  }
  latest_ = call;
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

#include "cc/executor/schedule_selector.h"

namespace jaxcomm {

bool ScheduleSelector::Next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stats_) stats_->trial().Decide();
  return RunsDefault(begun_++) || is_early_;
}

ScheduleSelector::Decision ScheduleSelector::Decide(const CallId& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (call.iteration == 0) {
    launches_ = call.launch > launch_ ? call.launch - launch_ : 1;
    launch_ = call.launch;
  }
  const Trial::Outcome outcome = stats_ ? stats_->trial().Decide() : Trial::Outcome::kOpen;
  const bool here = FindLocked(call).value_or(RunsDefault(begun_++));
  bool next = RunsDefault(begun_) || is_early_;
  if (call.iteration == 0) {
    // A decision that is kept stays, also if its announcement failed.
    const bool* const kept = next_launch_.Find({call.communicator, call.launch + launches_, call.site, 0});
    if (kept) next = *kept;
  }
  const Decision decision{here, next, launches_, outcome};
  Keep(call, decision);
  return decision;
}

void ScheduleSelector::Receive(const CallId& call, Decision decision) {
  std::lock_guard<std::mutex> lock(mutex_);
  Keep(call, decision);
  if (!stats_ || call < received_) return;
  received_ = call;
  stats_->trial().Follow(decision.outcome);
}

bool ScheduleSelector::RunsDefault(uint32_t call) const { return stats_ && stats_->trial().RunsDefault(call); }

// The call before, whose cycle ends with this one's last arrival.
void ScheduleSelector::Record(const Ended& call) {
  if (ended_++ > Trial::kWarmUp && !latest_.is_on_time) {
    stats_->trial().Record(latest_.is_early, {latest_.transfer, Seconds(call.last - latest_.last)});
  }
  latest_ = call;
}

std::optional<bool> ScheduleSelector::Find(const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(call);
}

std::optional<bool> ScheduleSelector::FindLocked(const CallId& call) const {
  const bool* is_early = here_.Find(call);
  if (!is_early) is_early = (call.iteration == 0 ? next_launch_ : next_).Find(call);
  return is_early ? std::optional<bool>(*is_early) : std::nullopt;
}

void ScheduleSelector::Keep(const CallId& call, Decision decision) {
  here_.Add(call, decision.is_early);
  next_.Add({call.communicator, call.launch, call.site, call.iteration + 1}, decision.next_is_early);
  if (call.iteration == 0)
    next_launch_.Add({call.communicator, call.launch + decision.launches, call.site, 0}, decision.next_is_early);
}

}  // namespace jaxcomm

#include "cc/executor/decide/schedule_selector.h"

namespace jaxcomm {

std::optional<uint32_t> ScheduleSelector::Next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (trial_) trial_->Decide();
  if (RunsDefault(begun_++)) return kDefault;
  return by_turns() ? std::nullopt : std::optional<uint32_t>(Latest());
}

// Returns the schedule for calls in which the fixed rank is as late as in the call that ended last.
uint32_t ScheduleSelector::Latest() const { return is_on_time_ ? kDefault : first(); }

std::optional<uint32_t> ScheduleSelector::FindMissing(const std::vector<bool>& here) {
  const auto missing = std::find(here.begin(), here.end(), false);
  if (missing == here.end()) return kDefault;
  if (std::find(missing + 1, here.end(), false) != here.end()) return std::nullopt;
  return static_cast<uint32_t>(1 + (missing - here.begin()));
}

std::optional<ScheduleSelector::Decision> ScheduleSelector::Decide(const CallId& call, uint32_t schedule,
                                                                   std::optional<uint32_t> lost) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (here_.Find(call) != nullptr) return std::nullopt;
  if (call.iteration == 0) {
    launches_ = call.launch > launch_ ? call.launch - launch_ : 1;
    launch_ = call.launch;
  }
  const Trial::Outcome outcome = trial_ ? trial_->Decide() : Trial::Outcome::kOpen;
  const bool is_default = RunsDefault(begun_++);
  Decision decision{FindLocked(call).value_or(lost.value_or(is_default ? kDefault : schedule)), {}, launches_, outcome};
  if (lost) {
    decision.next = lost;
  } else if (RunsDefault(begun_)) {
    decision.next = kDefault;
  } else if (!by_turns()) {
    decision.next = Latest();
  }
  if (call.iteration == 0) {
    // An earlier decision may already have set a schedule for the first call of launch `call.launch + launches_`. If
    // so, announces that schedule again, because the earlier announcement may have failed.
    const auto kept = FindLocked({call.communicator, call.launch + launches_, call.site, 0});
    if (kept) decision.next = kept;
  }
  Keep(call, decision);
  return decision;
}

void ScheduleSelector::Receive(const CallId& call, Decision decision) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (here_.Find(call) != nullptr) return;
  Keep(call, decision);
  if (!trial_ || call < received_) return;
  received_ = call;
  trial_->Follow(decision.outcome);
}

bool ScheduleSelector::RunsDefault(uint32_t call) const { return trial_ && trial_->RunsDefault(call); }

// Records in the trial the times of the call that preceded `call`. The cycle (trial.h) of that earlier call ends with
// the last arrival at `call`.
void ScheduleSelector::Record(const Ended& call) {
  if (ended_++ > Trial::kWarmUp && !latest_.is_on_time && !IsForLostRail(latest_.schedule)) {
    trial_->Record(latest_.schedule == kDefault, {latest_.transfer, Seconds(call.last - latest_.last)});
  }
  latest_ = call;
}

std::optional<uint32_t> ScheduleSelector::Find(const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return FindLocked(call);
}

std::optional<ScheduleSelector::Decision> ScheduleSelector::FindDecision(const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Decision* const decision = here_.Find(call);
  return decision ? std::optional<Decision>(*decision) : std::nullopt;
}

std::optional<uint32_t> ScheduleSelector::FindLocked(const CallId& call) const {
  if (const Decision* const decision = here_.Find(call)) return decision->schedule;
  const uint32_t* const schedule = (call.iteration == 0 ? next_launch_ : next_).Find(call);
  return schedule ? std::optional<uint32_t>(*schedule) : std::nullopt;
}

void ScheduleSelector::Keep(const CallId& call, Decision decision) {
  if (decision.next) {
    next_.Add({call.communicator, call.launch, call.site, call.iteration + 1}, *decision.next);
    if (call.iteration == 0) {
      next_launch_.Add({call.communicator, call.launch + decision.launches, call.site, 0}, *decision.next);
    }
  }
  here_.Add(call, decision);  // added last, because a call in here_ counts as decided
}

}  // namespace jaxcomm

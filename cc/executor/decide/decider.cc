#include "cc/executor/decide/decider.h"

#include <cstring>

#include "cc/base/hash.h"

namespace jaxcomm {
namespace {

std::string Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return std::to_string(bits);
}

}  // namespace

std::shared_ptr<ScheduleSelector> Decider::SelectorOf(uint64_t communicator, std::string calls,
                                                      ScheduleSelector::Rule rule, uint64_t step,
                                                      std::vector<ScheduleSelector::LostRail> lost_rails) {
  calls += "|" + std::to_string(rule.rank) + "|" + Bits(rule.seconds) + (rule.tries ? "|tries" : "");
  for (const auto& [rank, rail, schedule] : lost_rails) {
    calls += "|" + std::to_string(rank) + ":" + std::to_string(rail) + ":" + std::to_string(schedule);
  }
  const uint64_t id = Hash(calls);
  // Each step has a selector of its own only if one fixed rank may be late. If the late rank may differ from call to
  // call, steps share a selector, because a process may decide a call before its own ranks join, and then does not know
  // the call's step. For lost rails, steps share a selector because a lost rail concerns all steps.
  if (rule.rank < ScheduleSelector::kNoRank) calls += "|" + std::to_string(step);
  std::lock_guard<std::mutex> lock(mutex_);
  auto& selectors = selectors_.try_emplace(communicator, kSelectors).first->second;
  std::shared_ptr<ScheduleSelector>& selector = *selectors.Add(calls).value;
  if (!selector) selector = std::make_shared<ScheduleSelector>(rule, id, std::move(lost_rails));
  return selector;
}

std::optional<Decider::Choice> Decider::Choose(const DecidedSite& site, const CallId& call, uint32_t rank) {
  Choice choice;
  if (site.follows_plans()) {
    choice.plan = plans_.Select(call.communicator, call.launch, site.step());
    return choice.plan ? std::optional<Choice>(choice) : std::nullopt;
  }
  if (site.selector() == nullptr) return choice;
  ScheduleSelector& selector = *site.selector();
  Learn(site, call);
  // If the late rank may differ from call to call, Choose decides the call only if the call's schedule was announced
  // earlier. DecideByTurns decides the other calls.
  if (rank == selector.decider() && (!selector.by_turns() || selector.Find(call))) {
    choice.taken = selector.Decide(call, selector.first(), lost_rails_.Find(site));
  }
  const std::optional<uint32_t> schedule = selector.Find(call);
  if (!schedule) return std::nullopt;
  choice.schedule = *schedule;
  return choice;
}

Decider::Turn Decider::DecideByTurns(const DecidedSite& site, const CallId& call, const std::vector<bool>& here,
                                     Clock::time_point latest) {
  const std::optional<uint32_t> schedule = ScheduleSelector::FindMissing(here);
  if (!schedule) return {};
  ScheduleSelector& selector = *site.selector();
  const Clock::duration left = latest + selector.grace() - Clock::now();
  if (*schedule != ScheduleSelector::kDefault && left > Clock::duration::zero()) return {std::nullopt, left};
  return {selector.Decide(call, *schedule, lost_rails_.Find(site)), std::nullopt};
}

void Decider::Add(uint32_t process, const CallId& call, const Decision& decision) {
  std::lock_guard<std::mutex> lock(mutex_);
  decisions_.Add({process, call}, decision);
}

void Decider::Learn(const DecidedSite& site, const CallId& call) const {
  if (site.selector() == nullptr) return;
  const std::optional<Decision> decision = FindOf(site.decider(), call);
  if (decision) site.selector()->Receive(call, *decision);
}

std::optional<Decider::Decision> Decider::Find(const DecidedSite& site, const CallId& call) const {
  const std::optional<Decision> decision = FindOf(site.process(), call);
  return decision ? decision : site.selector()->FindDecision(call);
}

std::optional<Decider::Decision> Decider::FindOf(uint32_t process, const CallId& call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Decision* const decision = decisions_.Find({process, call});
  return decision ? std::optional<Decision>(*decision) : std::nullopt;
}

void Decider::ForgetCommunicator(uint64_t communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  selectors_.erase(communicator);
}

void Decider::Clear() {
  plans_.Reset();
  lost_rails_.Clear();
  std::lock_guard<std::mutex> lock(mutex_);
  decisions_.Clear();
  selectors_.clear();
}

}  // namespace jaxcomm

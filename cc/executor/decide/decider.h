// Decides which schedule a call between processes runs, with the same result in all processes. If the site has several
// schedules, lateness, a trial or a host's lost rail selects one of them (schedule_selector.h). If the site follows the
// plan of the run, the call runs that plan's schedule (plan_selector.h).
//
//   Decider decider(/*decided=*/[this] { StartAllDecided(); });
//   std::optional<Decider::Choice> choice = decider.Choose(*site, call, rank);   // nullopt: not decided yet
//   decider.Add(process, call, decision);                                        // `process` has announced `decision`
//   std::optional<ScheduleSelector::Decision> decision = decider.Find(*site, call);
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/decide/decided_site.h"
#include "cc/executor/decide/lost_rails.h"
#include "cc/executor/decide/plan_selector.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Decider {
 public:
  using Decision = ScheduleSelector::Decision;
  struct Choice {
    uint32_t schedule = ScheduleSelector::kDefault;
    std::optional<PlanSelector::Plan> plan = std::nullopt;  // only for sites that follow the plan of the run
    std::optional<Decision> taken = std::nullopt;           // the decision to announce, if this rank has decided
  };
  struct Turn {
    std::optional<Decision> taken = std::nullopt;
    std::optional<Clock::duration> wait = std::nullopt;  // the time until the missing rank counts as late
  };

  // `decided` runs after each decision on a plan, without a lock (plan_selector.h).
  explicit Decider(std::function<void()> decided) : plans_(std::move(decided)) {}

  // Returns the selector for those calls of the communicator that the text `calls` describes. All executables with
  // these calls share one selector, because processes compile and drop executables at different times. `step`
  // distinguishes the calls of a step from equal calls of other steps.
  std::shared_ptr<ScheduleSelector> SelectorOf(uint64_t communicator, std::string calls, ScheduleSelector::Rule rule,
                                               uint64_t step, std::vector<ScheduleSelector::LostRail> lost_rails);
  PlanSelector& plans() { return plans_; }
  LostRails& lost_rails() { return lost_rails_; }

  // Returns the choice for a rank of this process that arrives at the call; nullopt if the call is not decided yet. If
  // the rank is the decider, Choose decides the call, with one exception: if the site's late rank may differ from call
  // to call, Choose decides the call only if the call's schedule was announced earlier.
  std::optional<Choice> Choose(const DecidedSite& site, const CallId& call, uint32_t rank);
  // Called in the decider's process, only for sites whose late rank may differ from call to call. `here`: by rank,
  // whether the rank has arrived. `latest`: the time of the last arrival. Decides the call if all ranks have arrived,
  // or if one rank is missing and the selector's grace() has passed since `latest`. Returns an empty Turn if several
  // ranks are missing, or if the selector has decided the call already.
  Turn DecideByTurns(const DecidedSite& site, const CallId& call, const std::vector<bool>& here,
                     Clock::time_point latest);

  // Keeps another process's decision about a call. The call may not have begun in this process yet. Only the first
  // decision about a call counts.
  void Add(uint32_t process, const CallId& call, const Decision& decision);
  // Passes the decision about a call to the site's selector, if the decision has arrived.
  void Learn(const DecidedSite& site, const CallId& call) const;
  // Returns this process's decision about a call; nullopt if the process has not decided the call.
  std::optional<Decision> Find(const DecidedSite& site, const CallId& call) const;

  void ForgetCommunicator(uint64_t communicator);
  // Forgets everything. Called before another job begins.
  void Clear();

 private:
  static constexpr size_t kDecisions = 1024;
  static constexpr size_t kSelectors = 1024;  // per communicator

  std::optional<Decision> FindOf(uint32_t process, const CallId& call) const;

  PlanSelector plans_;
  LostRails lost_rails_;
  mutable std::mutex mutex_;                                                 // guards the members below
  BoundedMap<std::pair<uint32_t, CallId>, Decision> decisions_{kDecisions};  // by deciding process and call
  // Keys: the communicator, and the text that describes the calls.
  std::map<uint64_t, BoundedMap<std::string, std::shared_ptr<ScheduleSelector>>> selectors_;
};

}  // namespace jaxcomm

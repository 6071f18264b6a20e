// Selects the plan that calls follow. All processes change to another plan at the same launch.
//
//   PlanSelector plans(/*decided=*/[this] { StartAllDecided(); });
//   bool prepared = plans.Prepare(plan, {{communicator, /*launch=*/120}});   // false: that launch has begun here
//   plans.Decide(/*commit=*/true);                                           // after Prepare in all processes
//   auto selected = plans.Select(communicator, launch, step);                // nullopt: undecided
//   std::vector<double> seconds = plans.Periods().at(step);                  // between the step's latest launches
//
// Between Prepare and Decide this process does not know whether the other processes have prepared the plan. Calls of
// the prepared launches wait until `decided` runs. Thread-safe; `decided` runs in Decide or Fail, without a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/threads/timer.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// The plan of the run is the plan that the latest decision selected. Calls that follow the plan of the run have the
// plan name kAuto.
inline constexpr std::string_view kAuto = "auto";

// A plan's lists of messages for all-reduces. The lists live as long as calls may follow the plan.
struct PlannedLists {
  struct Range {
    int64_t min_bytes;  // the minimum number of bytes of a rank's operand
    std::string name;
    std::vector<std::shared_ptr<const Messages>> lists;  // by rank; empty: calls run their call site's lists
  };

  std::string plan;         // the plan's name, for error texts
  uint32_t ranks;           // the number of ranks in each group that the plan is for
  std::vector<Range> from;  // ascending by min_bytes; the first range begins at 0

  // Returns the range of a call with groups of `group_ranks` ranks and operands of `bytes` bytes. Returns null if the
  // call runs its call site's lists.
  const Range* Find(size_t group_ranks, int64_t bytes) const;
};

class PlanSelector {
 public:
  struct Launch {
    uint64_t communicator;
    uint32_t launch;  // the number of earlier launches with calls on the communicator
  };
  // Null if calls run their call site's lists. An error if the processes could not agree on a plan.
  using Plan = Result<std::shared_ptr<const PlannedLists>>;

  explicit PlanSelector(std::function<void()> decided) : decided_(std::move(decided)) {}

  // Prepares a change: from these launches on, the communicators' calls follow the plan. If `plan` is null, the calls
  // run their call site's lists. The change replaces earlier decisions about these launches. Returns false and changes
  // nothing if one of the launches has begun here, or if another prepared change has not been decided.
  bool Prepare(const std::shared_ptr<const PlannedLists>& plan, const std::vector<Launch>& from);
  // Carries out the prepared change if `commit`, otherwise drops it. Changes nothing if no change has been prepared.
  void Decide(bool commit);
  // Called if this process cannot learn the decision. Fails the calls of the prepared launches and of all later
  // launches.
  void Fail(const Status& why);
  // Forgets everything. Called before another job begins.
  void Reset();

  // The plan of a call in this launch; nullopt if not decided yet. `step`: the hash of the launched step.
  std::optional<Plan> Select(uint64_t communicator, uint32_t launch, uint64_t step);

  // Returns the number of each communicator's next launch. Omits communicators without a launch.
  std::vector<Launch> Next() const;
  // Returns the seconds between the beginnings of each step's latest launches in this process, at most kPeriods values
  // per step. Counts only launches since the latest change of the plan.
  std::map<uint64_t, std::vector<double>> Periods() const;

  static constexpr size_t kPeriods = 64;

 private:
  // For each communicator, at most this number of decisions whose first launch has begun are kept, because launches in
  // flight do not need older decisions.
  static constexpr size_t kKept = 4;

  struct Launches {
    uint32_t next = 0;
    std::map<uint32_t, std::shared_ptr<const PlannedLists>> plans;  // by the first launch that follows the plan
    std::map<uint64_t, std::deque<Clock::time_point>> begun;        // by step: when the latest launches began
  };

  void End(bool commit, const Status& why);

  const std::function<void()> decided_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Launches> communicators_;
  std::map<uint64_t, uint32_t> prepared_;  // by communicator: the change's first launch; empty if no change is prepared
  std::shared_ptr<const PlannedLists> plan_;
  Status failure_;
};

}  // namespace jaxcomm

// Selects the plan that calls follow from a launch on, alike in all processes.
//
//   PlanSelector plans(/*decided=*/[this] { StartAllDecided(); });
//   bool prepared = plans.Prepare(plan, {{communicator, /*launch=*/120}});   // false: that launch has begun here
//   plans.Decide(/*commit=*/true);                                           // once all processes have prepared it
//   auto selected = plans.Select(communicator, launch, step);                // none: undecided
//   std::vector<double> seconds = plans.Periods().at(step);                  // of its latest launches
//
// Between Prepare and Decide this process does not know whether the others could prepare, so calls of those launches
// wait until `decided` runs. Thread-safe; `decided` runs in Decide or Fail, without a lock.
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
#include "cc/executor/timer.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// The plan's name in calls that follow the plan of the run.
inline constexpr std::string_view kAuto = "auto";

// The lists of messages that a plan gives all-reduces, which live as long as calls may follow it.
struct PlannedLists {
  struct Range {
    int64_t min_bytes;  // of a rank
    std::string name;
    std::vector<std::shared_ptr<const Messages>> lists;  // by rank; none: the call's own
  };

  std::string plan;         // its name, for messages
  uint32_t ranks;           // of the groups that it is for
  std::vector<Range> from;  // ascending from 0 bytes

  // None: the call's own.
  const Range* Find(size_t group_ranks, int64_t bytes) const;
};

class PlanSelector {
 public:
  struct Launch {
    uint64_t communicator;
    uint32_t launch;  // the number of launches that called on it before
  };
  // Null: the call's own lists. An error: the processes could not agree.
  using Plan = Result<std::shared_ptr<const PlannedLists>>;

  explicit PlanSelector(std::function<void()> decided) : decided_(std::move(decided)) {}

  // From these launches on the communicators' calls are to follow the plan, or their own lists if it is null, whatever
  // was decided for these launches before. False, and nothing has changed: one of the launches has begun here, or
  // others have been prepared and not decided.
  bool Prepare(const std::shared_ptr<const PlannedLists>& plan, const std::vector<Launch>& from);
  // Carries out the prepared change, or drops it; does nothing if none has been prepared.
  void Decide(bool commit);
  // The decision cannot be known: the calls of those launches, and of all later ones, fail.
  void Fail(const Status& why);
  // Forgets all, for another job.
  void Reset();

  // The plan of a call of this launch, which is one of the step with this hash; none: not decided yet.
  std::optional<Plan> Select(uint64_t communicator, uint32_t launch, uint64_t step);

  // The next launch of each communicator that has had one.
  std::vector<Launch> Next() const;
  // By step: the seconds from the beginning of each of its latest launches here to that of the next, kPeriods of them
  // at most, as far as they follow one decision.
  std::map<uint64_t, std::vector<double>> Periods() const;

  static constexpr size_t kPeriods = 64;

 private:
  // Decisions that a communicator has reached; no launch in flight is behind all of them.
  static constexpr size_t kKept = 4;

  struct Launches {
    uint32_t next = 0;
    std::map<uint32_t, std::shared_ptr<const PlannedLists>> plans;  // by their first launch
    std::map<uint64_t, std::deque<Clock::time_point>> begun;        // by step: its latest ones, under one decision
  };

  void End(bool commit, const Status& why);

  const std::function<void()> decided_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Launches> communicators_;
  std::map<uint64_t, uint32_t> prepared_;  // the launch by communicator; none: nothing is to be decided
  std::shared_ptr<const PlannedLists> plan_;
  Status failure_;
};

}  // namespace jaxcomm

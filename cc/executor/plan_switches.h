// The plan that calls on a communicator follow from a launch on, alike in all processes.
//
//   bool prepared = switches.Prepare(plan, {{communicator, /*launch=*/120}});   // false: that launch has begun here
//   switches.Decide(/*commit=*/true);                                     // once all processes have prepared it
//   switches.Follow(communicator, launch, step, [](const Status& status,
//                                                  const std::shared_ptr<const PlannedLists>& plan,
//                                                  bool has_waited) {…});
//   std::vector<double> seconds = switches.Periods().at(step);            // of its latest launches
//
// Between Prepare and Decide nobody here knows what the others will do, so calls of those launches wait. Thread-safe;
// callbacks run in Follow, or in Decide or Fail, one after the other, if they have waited. No lock is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/timer.h"
#include "cc/program/messages.h"

namespace jaxcomm {

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
  const Range* Find(uint32_t group_ranks, int64_t bytes) const;
};

class PlanSwitches {
 public:
  struct Launch {
    uint64_t communicator;
    uint32_t launch;  // how many launches called on it before
  };
  // No plan: the call's own lists. An error: the processes could not agree.
  using Then = std::function<void(const Status&, const std::shared_ptr<const PlannedLists>&, bool has_waited)>;

  // From these launches on the communicators' calls are to follow the plan, or their own lists if there is none,
  // whatever was decided for these launches before. False, and nothing has changed: one of the launches has begun here,
  // or others have been prepared and not decided.
  bool Prepare(const std::shared_ptr<const PlannedLists>& plan, const std::vector<Launch>& from);
  // Whether that comes true; nothing, where none has been prepared.
  void Decide(bool commit);
  // It cannot be known: the calls of those launches, and of all later ones, fail.
  void Fail(const Status& why);
  // This process leaves its job: forgets all, and ends the calls that wait for a decision.
  void Reset();

  // A call of this launch begins, which is one of the step with this hash.
  void Follow(uint64_t communicator, uint32_t launch, uint64_t step, Then then);

  // The next launch of each communicator that has had one.
  std::vector<Launch> Next() const;
  // By step: the seconds from the beginning of each of its latest launches here to that of the next, kPeriods of them
  // at most, as far as they follow one decision.
  std::map<uint64_t, std::vector<double>> Periods() const;

  static constexpr size_t kPeriods = 64;

 private:
  static constexpr size_t kKept =
      4;  // switches that a communicator has reached; no launch in flight is behind all of them

  struct Launches {
    uint32_t next = 0;
    std::map<uint32_t, std::shared_ptr<const PlannedLists>> plans;  // by their first launch
    std::map<uint64_t, std::deque<Clock::time_point>> begun;        // by step: its latest ones, under one decision
  };
  struct Waiting {
    uint64_t communicator;
    uint32_t launch;
    Then then;
  };

  void End(bool commit, const Status& why);
  void Run(uint64_t communicator, uint32_t launch, Then then, bool has_waited);

  mutable std::mutex mutex_;
  std::map<uint64_t, Launches> communicators_;
  std::map<uint64_t, uint32_t> prepared_;  // the launch by communicator; none: nothing is to be decided
  std::shared_ptr<const PlannedLists> plan_;
  Status failure_;
  std::vector<Waiting> waiting_;
};

}  // namespace jaxcomm

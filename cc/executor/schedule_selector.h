// Selects the schedule that the next call of a site runs: `late` if one rank was late in the call before, else `early`.
//
//   ScheduleSelector selector({/*rank=*/2, /*seconds=*/0.009});
//   selector.RecordCall(8, [&](uint32_t rank) { return arrivals[rank]; }, is_early, transfer);   // a call has ended
//   if (selector.Next()) …    // early: rank 2 came less than 9 ms after the last of the others
//
// A site without a selector always runs one schedule. Between processes one rank decides, as processes measure
// different lateness. When this rank arrives, it announces the schedules of this call and of the next one, so that no
// rank waits:
//
//   ScheduleSelector::Decision decision = selector.Decide(call);   // in the decider's process
//   selector.Receive(call, decision);                              // in the others
//   std::optional<bool> is_early = selector.Find(call);            // none: the decision has not come yet
//
// A rule that `tries` begins with a trial, of calls to which the rank comes late, and drops `late` for good if it does
// not gain over `early`.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cc/base/bounded_map.h"
#include "cc/executor/stats.h"
#include "cc/executor/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class ScheduleSelector {
 public:
  // `early` runs after calls to which the rank came less than `seconds` after all others.
  struct Rule {
    uint32_t rank;
    double seconds;
    bool tries = false;
  };
  // Calls run `late` at any lateness, unless the trial drops it.
  static constexpr Rule kTrial{/*rank=*/1, /*seconds=*/std::numeric_limits<double>::lowest(), /*tries=*/true};
  // Whether a call runs `early`, and whether the next one will: the one after it in its launch, or the first one
  // `launches` launches later.
  struct Decision {
    bool is_early = false;
    bool next_is_early = false;
    uint32_t launches = 1;
    Trial::Outcome outcome = Trial::Outcome::kOpen;
  };

  explicit ScheduleSelector(Rule rule) : rule_(rule) {}

  bool tries() const { return rule_.tries; }
  // The rank that decides: one that is not late.
  uint32_t decider() const { return rule_.rank == 0 ? 1 : 0; }

  // Before the first call: the statistics that keep the trial.
  void Try(std::shared_ptr<SiteStats> stats) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rule_.tries) stats_ = std::move(stats);
  }

  // A call of at least two ranks has ended; `at`: when a rank came. `transfer`: seconds from the last arrival to the
  // end.
  template <typename At>
  void RecordCall(uint32_t ranks, At at, bool is_early, double transfer) {
    Clock::time_point others = at(decider());
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != rule_.rank) others = std::max(others, at(rank));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    is_early_ = Seconds(at(rule_.rank) - others) < rule_.seconds;
    if (stats_) Record({std::max(others, at(rule_.rank)), transfer, is_early, is_early_});
  }

  // Within a process: whether the call that begins runs `early`.
  bool Next();

  // The call's schedule is the one announced before, otherwise `late`.
  Decision Decide(const CallId& call);
  void Receive(const CallId& call, Decision decision);
  std::optional<bool> Find(const CallId& call) const;

 private:
  static constexpr size_t kCalls = 256;  // that are remembered for ranks that arrive later

  struct Ended {
    Clock::time_point last;  // arrival
    double transfer = 0;
    bool is_early = false;
    bool is_on_time = false;  // so that it measures no schedule for a late rank
  };

  std::optional<bool> FindLocked(const CallId& call) const;
  void Keep(const CallId& call, Decision decision);
  bool RunsDefault(uint32_t call) const;
  void Record(const Ended& call);

  const Rule rule_;
  mutable std::mutex mutex_;
  std::shared_ptr<SiteStats> stats_;  // null: no trial
  uint32_t begun_ = 0, ended_ = 0;    // calls, of those that are tried
  Ended latest_;                      // the last one that ended
  CallId received_{};                 // the call of the last decision
  bool is_early_ = false;
  uint32_t launch_ = 0, launches_ = 1;  // of the decider's last call: its launch, and how many it came after the last
  // Whether a call runs `early`, by the first decision about it.
  BoundedMap<CallId, bool> here_{kCalls}, next_{kCalls}, next_launch_{kCalls};
};

}  // namespace jaxcomm

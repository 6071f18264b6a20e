// Selects which of a site's schedules a call runs, by lateness and by fenced rails. They have numbers: 0 is the one for
// calls without a late rank, the default one. Either one known rank may be late, and 1 is the schedule for that:
//
//   ScheduleSelector selector({/*rank=*/2, /*seconds=*/0.009});
//   selector.RecordCall(8, [&](uint32_t rank) { return arrivals[rank]; }, schedule, transfer);   // a call has ended
//   selector.Next();   // 0: to this call rank 2 came less than 9 ms after the last of the others; else 1
//
// Or ranks are late by turns, and 1 + r is the schedule for rank r. The call itself shows the missing rank, once all
// others have come:
//
//   ScheduleSelector selector({ScheduleSelector::kAnyRank, /*seconds=*/0.002});
//   selector.Next();                                // none: the call waits until all ranks but one have come, and then
//   selector.FindMissing({true, false, true});      // runs 2: rank 1 is missing; 0 if no rank is; none if several are
//
// Further schedules may be for calls while one host lacks a rail (lost_rails.h). Calls then run that in place of
// others:
//
//   ScheduleSelector selector(ScheduleSelector::kNoLateRank, /*id=*/0, {{/*rank=*/4, /*rail=*/1, /*schedule=*/1}});
//   selector.Decide(call, ScheduleSelector::kDefault, /*fenced=*/1);   // the host of rank 4 is without rail 1
//
// A site without a selector always runs one schedule.
//
// Between processes the process of one rank, the decider, decides, as processes measure different lateness. It
// announces the schedule of this call and, where that is known, of the next one. So there is one decision about a call,
// which no order of arrival changes:
//
// - Where at most one known rank may be late, the decider is another one. It decides about a call and the next one when
//   it arrives, so that no rank waits. A fence takes effect with the second call that it decides afterwards.
// - By turns, ranks that arrive announce it and wait. The decider's process decides as soon as it knows of all ranks
//   but one, also if its own rank is the missing one: then its transport's thread does. A decision needs one message to
//   each other process, which the late rank's way here hides. In a trial the next call's turn is announced where that
//   is the default schedule's, so that ranks do not wait for it.
//
//   std::optional<ScheduleSelector::Decision> decision = selector.Decide(call, /*schedule=*/1);   // in its process
//   selector.Receive(call, *decision);                             // in the others
//   std::optional<uint32_t> schedule = selector.Find(call);        // none: the decision has not come yet
//
// A rule that `tries` begins with a trial, of calls to which the rank comes late, and drops its schedules for good if
// they do not gain over the default one.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/call_site_stats.h"
#include "cc/executor/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class ScheduleSelector {
 public:
  static constexpr uint32_t kAnyRank = std::numeric_limits<uint32_t>::max();  // each may be late, by turns
  static constexpr uint32_t kNoRank = kAnyRank - 1;                           // lateness selects no schedule
  static constexpr uint32_t kDefault = 0;                                     // schedule

  // A call is on time if its late rank comes less than `seconds` after all others.
  struct Rule {
    uint32_t rank;
    double seconds;
    bool tries = false;
  };
  // Calls run schedule 1 at any lateness, unless the trial drops it.
  static constexpr Rule kTrial{/*rank=*/1, /*seconds=*/std::numeric_limits<double>::lowest(), /*tries=*/true};
  // Calls run schedule 0, but for fences.
  static constexpr Rule kNoLateRank{kNoRank, /*seconds=*/0, /*tries=*/false};
  // The schedule while the host of this rank lacks this rail.
  struct Fence {
    uint32_t rank, rail, schedule;
  };
  // The schedule of a call and of the next one: the one after it in its launch, or the first one `launches` launches
  // later. None: that is decided when it comes.
  struct Decision {
    uint32_t schedule = kDefault;
    std::optional<uint32_t> next = std::nullopt;
    uint32_t launches = 1;
    Trial::Outcome outcome = Trial::Outcome::kOpen;
  };

  // `id`: alike in all processes, and not that of other calls.
  explicit ScheduleSelector(Rule rule, uint64_t id = 0, std::vector<Fence> fences = {})
      : rule_(rule), id_(id), fences_(std::move(fences)) {}

  uint64_t id() const { return id_; }

  bool tries() const { return rule_.tries; }
  bool by_turns() const { return rule_.rank == kAnyRank; }
  bool has_late_rank() const { return rule_.rank != kNoRank; }
  // How long the last rank may take before it is missing.
  Clock::duration grace() const {
    const double seconds = by_turns() && rule_.seconds > 0 ? std::min(rule_.seconds, kLongestGraceS) : 0;
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  const std::vector<Fence>& fences() const { return fences_; }
  bool IsFenced(uint32_t schedule) const {
    return std::any_of(fences_.begin(), fences_.end(), [&](const Fence& each) { return each.schedule == schedule; });
  }
  // The number of schedules of a site with this rule and these ranks, without those for fences.
  static uint32_t Count(const Rule& rule, size_t ranks) {
    return rule.rank == kAnyRank ? 1 + static_cast<uint32_t>(ranks) : rule.rank == kNoRank ? 1 : 2;
  }
  // The schedule of the first calls.
  uint32_t first() const { return has_late_rank() ? 1 : kDefault; }
  // The rank whose process decides: one that is not late, if one rank is.
  uint32_t decider() const { return rule_.rank == 0 ? 1 : 0; }

  // Before the first call: the statistics that keep the trial.
  void Try(std::shared_ptr<SiteStats> stats) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rule_.tries) stats_ = std::move(stats);
  }

  // A call of at least two ranks has ended; `at`: when a rank came. `transfer`: seconds from the last arrival to the
  // end.
  template <typename At>
  void RecordCall(uint32_t ranks, At at, uint32_t schedule, double transfer) {
    if (!has_late_rank()) return;
    uint32_t late = by_turns() ? 0 : rule_.rank;
    for (uint32_t rank = 1; by_turns() && rank < ranks; ++rank) late = at(rank) > at(late) ? rank : late;
    Clock::time_point others = Clock::time_point::min();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != late) others = std::max(others, at(rank));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    is_on_time_ = Seconds(at(late) - others) < rule_.seconds;
    if (stats_) Record({std::max(others, at(late)), transfer, schedule, is_on_time_});
  }

  // Within a process: the schedule of the call that begins. None: that of the rank that FindMissing names.
  std::optional<uint32_t> Next();
  // By turns, the schedule of a call to which these ranks have come; none: several are missing.
  static std::optional<uint32_t> FindMissing(const std::vector<bool>& here);

  // The call's schedule is the one announced before, else `fenced`, in a trial that of its turn, otherwise this one.
  // None: it has been decided already. `fenced`: the schedule for what hosts lack now, if there is one.
  std::optional<Decision> Decide(const CallId& call, uint32_t schedule, std::optional<uint32_t> fenced = std::nullopt);
  // Does nothing if the call has been decided here.
  void Receive(const CallId& call, Decision decision);
  std::optional<uint32_t> Find(const CallId& call) const;
  // The decision that was taken or received here, for a process that has lost it.
  std::optional<Decision> FindDecision(const CallId& call) const;

 private:
  static constexpr double kLongestGraceS = 3600;
  static constexpr size_t kCalls = 256;  // that are remembered for ranks that arrive later

  struct Ended {
    Clock::time_point last;  // arrival
    double transfer = 0;
    uint32_t schedule = kDefault;
    bool is_on_time = false;  // so that it measures no schedule for a late rank
  };

  std::optional<uint32_t> FindLocked(const CallId& call) const;
  void Keep(const CallId& call, Decision decision);
  bool RunsDefault(uint32_t call) const;
  void Record(const Ended& call);

  uint32_t Latest() const;

  const Rule rule_;
  const uint64_t id_;
  const std::vector<Fence> fences_;
  mutable std::mutex mutex_;
  std::shared_ptr<SiteStats> stats_;    // null: no trial
  uint32_t begun_ = 0, ended_ = 0;      // calls, of those that are tried
  Ended latest_;                        // the last one that ended
  CallId received_{};                   // the call of the last decision
  bool is_on_time_ = false;             // likewise
  uint32_t launch_ = 0, launches_ = 1;  // of the decider's last call: its launch, and how many it came after the last
  BoundedMap<CallId, Decision> here_{kCalls};  // the first one about a call
  BoundedMap<CallId, uint32_t> next_{kCalls}, next_launch_{kCalls};
};

}  // namespace jaxcomm

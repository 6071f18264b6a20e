// Selects which of a site's schedules a call runs, by lateness and by lost rails. Schedule 0, the default schedule, is
// for calls without a late rank. If one fixed rank may be late, schedule 1 is for calls in which this rank is late:
//
//   ScheduleSelector selector({/*rank=*/2, /*seconds=*/0.009});
//   selector.RecordCall(8, [&](uint32_t rank) { return arrivals[rank]; }, schedule, transfer);   // a call has ended
//   selector.Next();   // 0 if rank 2 arrived less than 9 ms after all other ranks at the recorded call, otherwise 1
//
// If the late rank may differ from call to call, schedule 1 + r is for calls in which rank r is late. The arrivals at a
// call show which rank is missing:
//
//   ScheduleSelector selector({ScheduleSelector::kAnyRank, /*seconds=*/0.002});
//   selector.Next();                              // nullopt: the call waits until all ranks but one have arrived
//   selector.FindMissing({true, false, true});    // 2, because rank 1 is missing; nullopt if several ranks are missing
//
// A selector may have further schedules, each for calls while one host lacks a rail (lost_rails.h):
//
//   ScheduleSelector selector(ScheduleSelector::kNoLateRank, /*id=*/0, {{/*rank=*/4, /*rail=*/1, /*schedule=*/1}});
//   selector.Decide(call, ScheduleSelector::kDefault, /*lost=*/1);   // the host of rank 4 is without rail 1
//
// A site without a selector always runs one schedule.
//
// Processes may measure different lateness at the same call, so one rank, the decider, decides for all ranks. The
// decider's process announces the schedule of a call and, if known, of the next call. Each call is decided once:
//
// - If no rank or only one fixed rank may be late, the decider is another rank. When the decider arrives at a call, it
//   decides about this call and the next call, so that no rank waits. A lost rail takes effect with the second call
//   decided after the loss.
// - If the late rank may differ from call to call, arriving ranks announce themselves and wait. The decider's process
//   decides as soon as all ranks but one have arrived. If the decider itself is missing, the transport's thread in the
//   decider's process decides. A decision costs one message to each other process; the late rank's delay hides the time
//   of this message. If a trial makes a call run the default schedule, the decision is announced one call earlier, so
//   that no rank waits.
//
//   std::optional<ScheduleSelector::Decision> decision = selector.Decide(call, /*schedule=*/1);   // decider's process
//   selector.Receive(call, *decision);                             // in the other processes
//   std::optional<uint32_t> schedule = selector.Find(call);        // nullopt: the decision has not arrived yet
//
// If Rule::tries is set, a trial compares the other schedules with the default schedule, and drops them if they are not
// faster (trial.h).
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
#include "cc/executor/decide/trial.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class ScheduleSelector {
 public:
  // The value of Rule::rank if the late rank may differ from call to call.
  static constexpr uint32_t kAnyRank = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kNoRank = kAnyRank - 1;  // the value of Rule::rank if no schedule depends on lateness
  static constexpr uint32_t kDefault = 0;            // the default schedule

  // A call is on time if the rank that may be late arrives less than `seconds` after all other ranks.
  struct Rule {
    uint32_t rank;
    double seconds;
    bool tries = false;
  };
  // Calls run schedule 1 whatever the lateness, except calls for which the trial requires schedule 0.
  static constexpr Rule kTrial{/*rank=*/1, /*seconds=*/std::numeric_limits<double>::lowest(), /*tries=*/true};
  // Calls run schedule 0, unless a host lacks a rail.
  static constexpr Rule kNoLateRank{kNoRank, /*seconds=*/0, /*tries=*/false};
  // The schedule that calls run while the host of `rank` lacks `rail`.
  struct LostRail {
    uint32_t rank, rail, schedule;
  };
  // `schedule` is the call's schedule. `next` is the schedule of the next call in the same launch; nullopt if the next
  // call is decided when ranks arrive at that call. If the call is the first of its launch, `next` is also the schedule
  // of the first call in the launch that comes `launches` launches later.
  struct Decision {
    uint32_t schedule = kDefault;
    std::optional<uint32_t> next = std::nullopt;
    uint32_t launches = 1;
    Trial::Outcome outcome = Trial::Outcome::kOpen;
  };

  // `id`: the same in all processes, and different for the selectors of other calls.
  explicit ScheduleSelector(Rule rule, uint64_t id = 0, std::vector<LostRail> lost_rails = {})
      : rule_(rule), id_(id), lost_rails_(std::move(lost_rails)) {}

  uint64_t id() const { return id_; }

  bool tries() const { return rule_.tries; }
  bool by_turns() const { return rule_.rank == kAnyRank; }
  bool has_late_rank() const { return rule_.rank != kNoRank; }
  // A rank counts as late if more than grace() has passed since all other ranks arrived. grace() is zero unless the
  // late rank may differ from call to call.
  Clock::duration grace() const {
    const double seconds = by_turns() && rule_.seconds > 0 ? std::min(rule_.seconds, kLongestGraceS) : 0;
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  const std::vector<LostRail>& lost_rails() const { return lost_rails_; }
  bool IsForLostRail(uint32_t schedule) const {
    return std::any_of(lost_rails_.begin(), lost_rails_.end(),
                       [&](const LostRail& each) { return each.schedule == schedule; });
  }
  // The number of schedules of a site with this rule and this number of ranks, without the schedules for lost rails.
  static uint32_t Count(const Rule& rule, size_t ranks) {
    return rule.rank == kAnyRank ? 1 + static_cast<uint32_t>(ranks) : rule.rank == kNoRank ? 1 : 2;
  }
  // The schedule of a call for which no earlier call has determined a schedule.
  uint32_t first() const { return has_late_rank() ? 1 : kDefault; }
  // The rank whose process decides: rank 0, or rank 1 if rank 0 is the one fixed rank that may be late.
  uint32_t decider() const { return rule_.rank == 0 ? 1 : 0; }

  // Sets the trial of the calls if Rule::tries is set. Called before the first call.
  void Try(std::shared_ptr<Trial> trial) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rule_.tries) trial_ = std::move(trial);
  }

  // Records the end of a call of two or more ranks. `at(rank)`: the rank's arrival. `transfer`: the seconds from the
  // last arrival to the end of the call.
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
    if (trial_) Record({std::max(others, at(late)), transfer, schedule, is_on_time_});
  }

  // Must be called only for calls within a process. Returns the schedule of the call that begins, or nullopt if the
  // call must wait until FindMissing finds the schedule.
  std::optional<uint32_t> Next();
  // Must be called only if the late rank may differ from call to call. Returns the schedule of a call. `here[rank]`:
  // whether the rank has arrived. Returns nullopt if several ranks are missing.
  static std::optional<uint32_t> FindMissing(const std::vector<bool>& here);

  // Decides the call's schedule. Takes the first of these schedules that exists: the schedule that was announced
  // earlier; `lost`, the schedule for the rail that a host lacks now; the default schedule, if the trial requires it
  // for this call; `schedule`. Returns nullopt if the call has been decided already.
  std::optional<Decision> Decide(const CallId& call, uint32_t schedule, std::optional<uint32_t> lost = std::nullopt);
  // Keeps a decision of another process. Does nothing if this process has a decision about the call already.
  void Receive(const CallId& call, Decision decision);
  std::optional<uint32_t> Find(const CallId& call) const;
  // Returns the decision that was taken or received here, so that it can be announced again.
  std::optional<Decision> FindDecision(const CallId& call) const;

 private:
  static constexpr double kLongestGraceS = 3600;
  static constexpr size_t kCalls = 256;  // the number of calls whose decisions are kept for ranks that arrive later

  struct Ended {
    Clock::time_point last;  // the last arrival
    double transfer = 0;
    uint32_t schedule = kDefault;
    bool is_on_time = false;  // on-time calls do not count in a trial, because they measure no schedule for a late rank
  };

  std::optional<uint32_t> FindLocked(const CallId& call) const;
  void Keep(const CallId& call, Decision decision);
  bool RunsDefault(uint32_t call) const;
  void Record(const Ended& call);

  uint32_t Latest() const;

  const Rule rule_;
  const uint64_t id_;
  const std::vector<LostRail> lost_rails_;
  mutable std::mutex mutex_;
  std::shared_ptr<Trial> trial_;    // null: no trial
  uint32_t begun_ = 0, ended_ = 0;  // the numbers of calls that have begun (for the trial's turns) and ended (warm-up)
  Ended latest_;                    // the last call that ended
  CallId received_{};               // the latest call whose received decision was applied to the trial
  bool is_on_time_ = false;         // whether the last call that ended was on time
  // launch_ is the number of the latest launch in which the decider decided a call. launches_ is the difference between
  // launch_ and the number of the previous such launch.
  uint32_t launch_ = 0, launches_ = 1;
  BoundedMap<CallId, Decision> here_{kCalls};  // the first decision about each call
  BoundedMap<CallId, uint32_t> next_{kCalls}, next_launch_{kCalls};
};

}  // namespace jaxcomm

// Which of two schedules the next call of a call site runs, by how late one rank came to those before.
//
//   StepChoice choice({/*rank=*/2, /*below=*/0.009});
//   choice.Saw(8, [&](uint32_t rank) { return arrivals[rank]; });   // a call of eight ranks has ended
//   if (choice.is_other()) …    // rank 2 came less than 9 ms after the last of the others
//
// Between processes one rank decides, as what they saw differs. When it comes to a call it says what this one runs and
// what the next one will, so that nobody has to wait for it:
//
//   StepChoice::Said said = choice.Decide(call);      // the decider comes
//   choice.Heard(call, said);                         // a process that hears of it
//   std::optional<bool> other = choice.Find(call);    // none: the decider has not said it yet
//
// A rule that `tries` has a trial first, of calls to which the rank comes that late, and drops the first schedule for
// good if it does not gain over the other one.
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

class StepChoice {
 public:
  // The other schedule runs after calls to which the rank came less than so many seconds after all others.
  struct Rule {
    uint32_t rank;
    double below;
    bool tries = false;
  };
  // Calls run the first schedule, whoever is late, unless the trial drops it.
  static constexpr Rule kTrial{/*rank=*/1, /*below=*/std::numeric_limits<double>::lowest(), /*tries=*/true};
  // Whether a call runs the other schedule, and whether the next one will: the one after it in its launch, or the first
  // one so many launches later.
  struct Said {
    bool here = false;
    bool next = false;
    uint32_t launches = 1;
    Trial::Outcome outcome = Trial::Outcome::kOpen;
  };

  explicit StepChoice(Rule rule) : rule_(rule) {}

  bool tries() const { return rule_.tries; }
  // The rank that decides: one that is not late.
  uint32_t decider() const { return rule_.rank == 0 ? 1 : 0; }

  // Before the first call: whose trial it is.
  void Try(std::shared_ptr<SiteStats> stats) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rule_.tries) stats_ = std::move(stats);
  }

  // A call of at least two ranks has ended; `at`: when a rank came. `transfer`: seconds from the last arrival to the
  // end.
  template <typename At>
  void Saw(uint32_t ranks, At at, bool is_other, double transfer) {
    Clock::time_point others = at(decider());
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != rule_.rank) others = std::max(others, at(rank));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    is_other_ = Seconds(at(rule_.rank) - others) < rule_.below;
    if (stats_) Record({std::max(others, at(rule_.rank)), transfer, is_other, is_other_});
  }

  // Within a process: whether the call that begins runs the other schedule.
  bool Next();

  // What it has announced before, or else the first schedule.
  Said Decide(const CallId& call);
  void Heard(const CallId& call, Said said);
  std::optional<bool> Find(const CallId& call) const;

 private:
  static constexpr size_t kCalls = 256;  // as long as ranks may come to them

  struct Ended {
    Clock::time_point last;  // arrival
    double transfer = 0;
    bool is_other = false;
    bool is_on_time = false;  // it says nothing of a schedule for a late rank
  };

  std::optional<bool> FindLocked(const CallId& call) const;
  void Keep(const CallId& call, Said said);
  bool RunsDefault(uint32_t call) const;
  void Record(const Ended& call);

  const Rule rule_;
  mutable std::mutex mutex_;
  std::shared_ptr<SiteStats> stats_;  // none: nothing is tried
  uint32_t begun_ = 0, ended_ = 0;    // calls, of those that are tried
  Ended latest_;                      // the last one that ended
  CallId heard_{};                    // the last one of which the decider was heard
  bool is_other_ = false;
  uint32_t launch_ = 0, launches_ = 1;  // of the decider's last call: its launch, and how many it came after the last
  // Whether a call runs the other schedule, by the first statement about it.
  BoundedMap<CallId, bool> here_{kCalls}, next_{kCalls}, next_launch_{kCalls};
};

}  // namespace jaxcomm

// Which of two schedules the next call of a call site runs, by how late one rank came to those before.
//
//   StepChoice choice({/*rank=*/2, /*below=*/0.009});
//   choice.Saw(late, others);   // a call has ended: when that rank came, and the last of the others
//   if (choice.is_other()) …    // it came less than 9 ms after them
//
// Between processes one rank decides, as what they saw differs. When it comes to a call it says what this one runs and
// what the next one will, so that nobody has to wait for it:
//
//   StepChoice::Said said = choice.Decide(call);      // the decider comes
//   choice.Heard(call, said);                         // a process that hears of it
//   std::optional<bool> other = choice.Find(call);    // none: the decider has not said it yet
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "cc/executor/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class StepChoice {
 public:
  // The other schedule runs after calls to which the rank came less than so many seconds after all others.
  struct Rule {
    uint32_t rank;
    double below;
  };
  // Of a call and of the one after it: whether it runs the other schedule.
  struct Said {
    bool here = false;
    bool next = false;
  };

  explicit StepChoice(Rule rule) : rule_(rule) {}

  const Rule& rule() const { return rule_; }
  // The rank that decides: one that is not late.
  uint32_t decider() const { return rule_.rank == 0 ? 1 : 0; }

  // A call has ended.
  void Saw(Clock::time_point late, Clock::time_point others) {
    std::lock_guard<std::mutex> lock(mutex_);
    is_other_ = Seconds(late - others) < rule_.below;
  }
  bool is_other() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return is_other_;
  }

  // What it has announced before, or else the first schedule.
  Said Decide(const CallId& call);
  void Heard(const CallId& call, Said said);
  std::optional<bool> Find(const CallId& call) const;
  // What the decider has said when it came to a call.
  Said SaidAt(const CallId& call) const;

 private:
  // Calls whose choice is kept, first ones of a launch and others each: of older ones no rank may come any more.
  static constexpr size_t kCalls = 1024;

  std::optional<bool> FindLocked(const CallId& call) const;
  void Keep(const CallId& call, Said said);

  const Rule rule_;
  mutable std::mutex mutex_;
  bool is_other_ = false;
  std::map<CallId, Said> said_;
  std::deque<CallId> firsts_, others_;  // from the oldest
};

}  // namespace jaxcomm

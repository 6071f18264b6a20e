// Whether a plan's schedule gains over the default one at a call site: calls run both by turns, and the times decide.
//
//   Trial trial;
//   bool is_default = trial.RunsDefault(/*call=*/12);          // of the call site's 13th call
//   trial.Record(is_default, {/*transfer=*/0.031, /*cycle=*/0.085});
//   trial.Decide();                                            // one rank decides for all
//   trial.Follow(Trial::Outcome::kDropped);                    // the other processes
//
// Turns are of two calls, in an order that follows no period that lateness may have. A call has two times: its
// transfer, from its last arrival to its end as this process sees it, and its cycle, from its last arrival to that of
// the site's next call, which also includes later ends on other ranks and the computation between calls. A plan is kept
// if one of them becomes clearly shorter and none clearly longer.
//
// After its outcome the trial is open again once transfers take much more or less time than they did in it, but not
// before kPause calls. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <ostream>

namespace jaxcomm {

class Trial {
 public:
  enum class Outcome : uint8_t { kOpen, kKept, kDropped };
  // Seconds; negative: not known.
  struct Times {
    double transfer, cycle;
  };

  static constexpr uint32_t kWarmUp = 4;   // the first calls of a call site, which do not count
  static constexpr size_t kCalls = 32;     // of each schedule, from which on there is an outcome
  static constexpr size_t kClear = 16;     // likewise if the difference is clear
  static constexpr int64_t kPause = 1024;  // calls from an outcome to the next trial

  // Whether the call site's call with this number runs the default schedule: in an open trial by turns, later where the
  // plan was dropped.
  bool RunsDefault(uint32_t call) const;
  void Record(bool is_default, Times times);
  // Of the process that decides: ends the trial if the times say enough, or opens it again.
  Outcome Decide();
  // Of the others: what it has decided.
  void Follow(Outcome outcome);
  Outcome outcome() const;
  // Both schedules have been timed.
  bool has_begun() const;
  // `,"trial":{…}`, if it has begun.
  void WriteJson(std::ostream& out) const;

 private:
  // Of the calls of one schedule.
  struct Schedule {
    std::deque<double> transfers, cycles;
  };
  // `gain`: by how much less time the plan takes than the default schedule; `error`: the standard error of that.
  struct Difference {
    double planned, usual, error;
    double gain() const { return usual - planned; }
    double least() const;  // that counts
  };
  static Difference Compare(const std::deque<double>& planned, const std::deque<double>& usual);

  bool HasBegun() const;
  void Set(Outcome outcome);
  bool HasChanged() const;
  const Schedule& planned() const { return schedules_[0]; }
  const Schedule& usual() const { return schedules_[1]; }

  mutable std::mutex mutex_;
  Outcome outcome_ = Outcome::kOpen;
  std::array<Schedule, 2> schedules_;  // the plan's and the default one's, in the latest trial
  std::deque<double> latest_;          // transfers since the outcome
  int64_t since_ = 0;                  // calls since then
  int64_t trials_ = 0;                 // that have ended
  bool decides_ = false;
};

}  // namespace jaxcomm

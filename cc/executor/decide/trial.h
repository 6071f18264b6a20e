// Finds whether a plan's schedule is faster than the default schedule at a call site. Calls alternate between the two
// schedules, and the calls' times decide.
//
//   Trial trial;
//   bool is_default = trial.RunsDefault(/*call=*/12);          // for the site's 13th call
//   trial.Record(is_default, {/*transfer=*/0.031, /*cycle=*/0.085});
//   trial.Decide();                                            // in the process that decides for all processes
//   trial.Follow(Trial::Outcome::kDropped);                    // in the other processes
//
// A turn is two calls. The order of turns is irregular, so that lateness with a period of a few calls favors neither
// schedule. Two times of each call are measured. The transfer lasts from the call's last arrival to the call's end in
// this process. The cycle lasts from the call's last arrival to the last arrival at the site's next call. Thus a cycle
// also covers other ranks for which the call ends later, and the computation between the calls. A plan is kept if one
// of the two times is clearly shorter than with the default schedule, and neither is clearly longer.
//
// An ended trial opens again if transfers take much more or much less time than during the trial, but not within kPause
// calls after the outcome. Thread-safe.
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
  // In seconds; negative if unknown.
  struct Times {
    double transfer, cycle;
  };

  static constexpr uint32_t kWarmUp = 4;   // the number of a site's first calls, which are not measured
  static constexpr size_t kCalls = 32;     // the trial ends after this number of calls of each schedule
  static constexpr size_t kClear = 16;     // after this number of calls of each schedule, a clear result ends the trial
  static constexpr int64_t kPause = 1024;  // minimum number of calls from an outcome to the next trial

  // Whether call number `call` runs the default schedule. In an open trial the schedules take turns; after the trial,
  // calls run the default schedule if the trial dropped the plan.
  bool RunsDefault(uint32_t call) const;
  void Record(bool is_default, Times times);
  // For the process that decides: ends an open trial if the recorded times suffice. Opens an ended trial again if
  // transfers now take much more or much less time.
  Outcome Decide();
  // For the other processes: takes over the outcome of the process that decides.
  void Follow(Outcome outcome);
  Outcome outcome() const;
  // Whether at least two transfers of each schedule have been timed.
  bool has_begun() const;
  // Writes `,"trial":{…}` if the trial has begun.
  void WriteJson(std::ostream& out) const;

 private:
  // The times of one schedule's calls.
  struct Schedule {
    std::deque<double> transfers, cycles;
  };
  bool HasBegun() const;
  void Set(Outcome outcome);
  bool HasChanged() const;
  const Schedule& planned() const { return schedules_[0]; }
  const Schedule& usual() const { return schedules_[1]; }

  mutable std::mutex mutex_;
  Outcome outcome_ = Outcome::kOpen;
  std::array<Schedule, 2> schedules_;  // times of the plan's and of the default schedule, in the latest trial
  std::deque<double> latest_;          // times of the latest transfers since the outcome
  int64_t since_ = 0;                  // number of calls since the outcome
  int64_t trials_ = 0;                 // number of trials that have ended
  bool decides_ = false;
};

}  // namespace jaxcomm

// The statistics of each call site: how long ranks wait, how long transfers take, and which ranks are late.
//
//   std::shared_ptr<SiteStats> site = stats.Site({"psum", "data", "3f9a01c2", 8, 4096});
//   site->Record(call);
//   std::string json = stats.Json();
//   json = stats.CallsJson();   // the latest calls with their times, including failed calls
//
// Keeps the latest calls. Also divides the run into a bounded number of time spans, and keeps the sums over the calls
// of each span. Thread-safe. Call sites with the same label share one SiteStats, so that recompiling loses no
// statistics. After a plan switch, no call site uses the old plan's SiteStats any more. CallSiteStats keeps at most
// kUnused SiteStats that no call site uses: the latest ones.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/time_spans.h"
#include "cc/executor/decide/trial.h"

namespace jaxcomm {

struct SiteLabel {
  std::string name, axes, plan;
  uint32_t ranks;
  int64_t bytes;

  bool operator<(const SiteLabel& other) const {
    return std::tie(name, axes, plan, ranks, bytes) <
           std::tie(other.name, other.axes, other.plan, other.ranks, other.bytes);
  }
};

// The identity of a call, for CallsJson.
struct CallTimes {
  uint64_t id = 0;     // a hash of the call's name, the same in all processes; 0 for calls within a process
  int64_t number = 0;  // the call's number in this process, from 1
  std::chrono::steady_clock::time_point first;  // time at which the first rank arrived
};

struct CallRecord {
  // The value for a rank whose time this process does not know. In a CallRecord, used only if groups change from call
  // to call.
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::vector<double> arrivals;  // by rank: seconds from the first rank's arrival to this rank's arrival
  // By rank: seconds until the last arrival in the rank's group. Empty unless groups change; SiteStats then computes
  // the waits from `arrivals`.
  std::vector<double> waits;
  std::vector<uint32_t> last;  // the rank that arrived last; if groups change, one per group
  std::vector<double> own;     // by rank: seconds since the rank's previous call ended; empty unless groups change
  double after_arrival = 0;    // seconds from the last arrival to the call's end, in the slowest group
  double early_share = 0;      // share of the work that was done before the last arrival
  bool is_early = false;       // whether the call ran the default schedule at a site with schedules for late ranks
  bool lacks_rail = false;     // whether the call ran a schedule for a host that lacks a rail
  CallTimes call;
};

struct FailedCall {
  CallTimes call;
  std::vector<double> arrivals;     // by rank, as in CallRecord; kUnknown if the rank had not arrived
  std::vector<uint32_t> processes;  // by rank; empty for calls within a process
  std::string why;
  std::chrono::steady_clock::time_point at;  // time of the failure
};

class SiteStats {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kKept = 256;  // the number of calls whose arrivals are kept
  static constexpr size_t kKeptFailures = 16;
  static constexpr size_t kLatest = 32;  // the number of calls in CallsJson, without the failed calls

  void Record(CallRecord call, Clock::time_point now = Clock::now());
  // Counts a transfer that has been sent. Only the receiver's process knows when both ranks arrived.
  void RecordSent();
  void RecordFailure();
  void KeepFailure(FailedCall call) {
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.push_back(std::move(call));
    if (failures_.size() > kKeptFailures) failures_.pop_front();
  }
  // Records the loss of `bytes` bytes that a rank of this process should have received and added to its sums.
  void RecordLoss(int64_t bytes);
  // The trial of the site's plan against the default schedule. Reset keeps the trial.
  Trial& trial() { return trial_; }
  const Trial& trial() const { return trial_; }
  std::optional<CallRecord> Last() const;
  std::string Json(const SiteLabel& label, bool with_spans = true) const;
  // Writes the site's latest calls as items of a JSON list. Times are microseconds of the steady clock.
  void WriteCalls(std::ostream& out, const SiteLabel& label, const char*& comma) const;
  void Reset();

 private:
  // Sums over the calls of a time span.
  struct Calls {
    void Add(const Calls& later);
    void Add(const CallRecord& call);

    int64_t calls = 0;
    double after_arrival = 0;
    std::vector<double> arrivals;  // by rank
  };

  void WriteSpans(std::ostream& out) const;

  mutable std::mutex mutex_;
  int64_t calls_ = 0;
  int64_t failed_ = 0;
  int64_t early_calls_ = 0;
  int64_t lost_rail_calls_ = 0;
  int64_t lost_bytes_ = 0;
  double transfer_ = 0;
  double early_share_ = 0;
  std::vector<double> wait_;
  std::vector<int64_t> late_;
  std::deque<CallRecord> recent_;
  std::deque<FailedCall> failures_;
  TimeSpans<Calls> spans_;
  Trial trial_;
};

class CallSiteStats {
 public:
  static constexpr size_t kUnused = 64;

  std::shared_ptr<SiteStats> Site(const SiteLabel& label);
  std::string Json(bool with_spans = true) const;
  // The trials of all call sites whose trial has begun, without the sites' other statistics.
  std::string TrialsJson() const;
  // The latest calls of all call sites, including failed calls.
  std::string CallsJson() const;
  void Reset();

 private:
  struct Kept {
    std::shared_ptr<SiteStats> stats;
    uint64_t asked = 0;  // the number of the latest Site() call that returned this SiteStats
  };
  void ForgetUnused();

  mutable std::mutex mutex_;
  std::map<SiteLabel, Kept> sites_;
  uint64_t asked_ = 0;
};

}  // namespace jaxcomm

// The statistics of each call site: the ranks' waiting, the transfer, and the late ranks.
//
//   std::shared_ptr<SiteStats> site = stats.Site({"psum", "data", "3f9a01c2", 8, 4096});
//   site->Record(call);
//   std::string json = stats.Json();
//
// Beside the last calls it keeps what they were like over the whole run, in bounded memory. Thread-safe. Call sites
// with the same label share one record, so that recompiling does not lose what was learnt. Of the records that no call
// site has any more, the latest CallSiteStats::kUnused are kept: plans that are switched in the run leave one behind
// each.
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
#include <vector>

#include "cc/base/time_spans.h"
#include "cc/executor/trial.h"

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

struct CallRecord {
  // Of a rank of another group that changes, in another process.
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::vector<double> arrivals;  // seconds after the first rank, by rank
  std::vector<double> waits;     // seconds until the last rank (of its group, if groups change) came, by rank
  std::vector<uint32_t> last;    // the ranks that came last
  std::vector<double> own;       // in groups that change: seconds since a rank's last call ended, by rank; else empty
  double after_arrival = 0;      // seconds from the last arrival to the end, of the slowest group
  double early_share = 0;        // share of the work that was done before the last arrival
  bool is_early = false;         // of several schedules it ran the one for no late rank
  bool is_fenced = false;        // it ran one for a host that lacks a rail
};

class SiteStats {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kKept = 256;  // calls whose arrivals are kept

  void Record(CallRecord call, Clock::time_point now = Clock::now());
  void RecordFailure();
  // The network has lost `bytes` that a rank of this process was to add.
  void RecordLoss(int64_t bytes);
  // Of its plan, where calls choose between that and the default schedule. Reset leaves it.
  Trial& trial() { return trial_; }
  const Trial& trial() const { return trial_; }
  // Of the calls that are kept.
  std::optional<CallRecord> Last() const;
  std::string Json(const SiteLabel& label, bool with_spans = true) const;
  void Reset();

 private:
  // The calls of some time, in sums.
  struct Calls {
    void Add(const Calls& later);

    int64_t calls = 0;
    double after_arrival = 0;
    std::vector<double> arrivals;  // by rank
  };

  void WriteSpans(std::ostream& out) const;

  mutable std::mutex mutex_;
  int64_t calls_ = 0;
  int64_t failed_ = 0;
  int64_t early_calls_ = 0;
  int64_t fenced_calls_ = 0;
  int64_t lost_bytes_ = 0;
  double transfer_ = 0;
  double early_share_ = 0;
  std::vector<double> wait_;
  std::vector<int64_t> late_;
  std::deque<CallRecord> recent_;
  TimeSpans<Calls> spans_;
  Trial trial_;
};

class CallSiteStats {
 public:
  static constexpr size_t kUnused = 64;

  std::shared_ptr<SiteStats> Site(const SiteLabel& label);
  std::string Json(bool with_spans = true) const;
  // Of the call sites that have a trial, without their calls.
  std::string TrialsJson() const;
  void Reset();

 private:
  struct Kept {
    std::shared_ptr<SiteStats> stats;
    uint64_t asked = 0;  // when a call site asked for it last
  };
  void ForgetUnused();

  mutable std::mutex mutex_;
  std::map<SiteLabel, Kept> sites_;
  uint64_t asked_ = 0;
};

}  // namespace jaxcomm

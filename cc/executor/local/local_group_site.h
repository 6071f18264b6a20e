// A call site within one process, with groups that change from call to call. At each call, every rank passes a row that
// has the group number of every rank.
//
//   auto site = std::make_shared<LocalGroupSite>("pmean", "data", programs);   // programs for groups of 2, 3, … ranks
//   site->SetLeaves(leaves, executor.stats());
//   site->Arrive(executor, run, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Each group is a call of its own. A rank's k-th call in a run belongs to the k-th round of that run, so groups of
// different rounds never mix. All ranks must pass the same row. If a rank passes a group number out of range, or a row
// that differs from the row of the round's first rank, all groups of the round that still lack a rank fail. If two rows
// differ, the error names the two ranks and their rows. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/executor/calls/group_numbers.h"
#include "cc/executor/local/local_executor.h"

namespace jaxcomm {

class LocalGroupSite : public CallSite, public std::enable_shared_from_this<LocalGroupSite> {
 public:
  // `programs`: the program for a group of 2 ranks, of 3 ranks, and so on up to all ranks.
  LocalGroupSite(const std::string& name, const std::string& axes,
                 const std::vector<std::shared_ptr<const Program>>& programs);

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override {
    return TakeRow(name_, ranks(), leaves, buffers);
  }
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override;
  void Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Forget(Executors& executors) const override;

  // The number of rounds that some rank has not joined yet.
  size_t open_rounds() const;

  uint32_t ranks() const { return static_cast<uint32_t>(sites_.size()) + 1; }

 private:
  struct Round {
    int64_t run, number;
    GroupNumbers row;
    std::vector<bool> here;
    std::vector<Clock::time_point> came, left;  // by rank: the times of the arrival and of the call's end
    std::vector<double> own;  // by rank: seconds since the rank's previous call ended; negative for its first call
    uint32_t num_here = 0;
    uint32_t num_left = 0;
    Status mismatch;
    bool failed = false;
  };
  struct Joined {
    std::shared_ptr<Round> round;
    Status mismatch;
    std::vector<bool> agreed;  // by rank: whether it arrived earlier; empty unless `mismatch` is the round's first
  };

  Joined Join(int64_t run, uint32_t rank, const GroupNumbers& row);
  Status Check(const Round& round, uint32_t rank, const GroupNumbers& row) const;
  LocalExecutor::Key KeyOf(int64_t run, const Round& round, int32_t group) const;
  const std::shared_ptr<LocalSite>& SiteOf(size_t size) const { return sites_[size - 2]; }
  void Leave(Round& round, uint32_t rank, const Status& status);
  void Record(const Round& round) const;

  const std::string name_, axes_;
  CallSiteStats places_;  // statistics of sites_; not reported, because sites_ number ranks by place in a group
  std::vector<std::shared_ptr<LocalSite>> sites_;  // sites_[i] is for groups of i + 2 ranks
  std::once_flag once_;
  Status status_;
  std::shared_ptr<SiteStats> stats_;

  // The number of failed runs whose open rounds are kept for ranks that arrive late.
  static constexpr size_t kFailedKept = 256;

  mutable std::mutex mutex_;
  std::map<int64_t, std::deque<std::shared_ptr<Round>>> rounds_;  // by run: rounds that some rank has not joined yet
  BoundedMap<int64_t, bool> failed_{kFailedKept};                 // the runs with a failed round
  std::vector<Clock::time_point> left_;  // by rank: when the rank's latest call ended; zero if no call has ended
  int64_t number_ = 0;
};

}  // namespace jaxcomm

// A call site within a process whose groups change from call to call: every rank brings the row of all ranks' groups.
//
//   auto site = std::make_shared<LocalGroupSite>("pmean", "data", programs);   // programs for 2, 3, … ranks
//   site->SetLeaves(leaves, executor.stats());
//   site->Arrive(executor, run, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Each group is a call of its own. A rank's k-th call in a run belongs to the k-th round of that run, so groups of
// different rounds never mix. All ranks must bring the same row. If they do not, calls that lack a rank at that moment
// fail with an error that names both ranks and rows; likewise if a group is out of range. Thread-safe.
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
#include "cc/executor/call_site.h"
#include "cc/executor/executor.h"
#include "cc/executor/group_numbers.h"

namespace jaxcomm {

class LocalGroupSite : public CallSite, public std::enable_shared_from_this<LocalGroupSite> {
 public:
  // A program for each size of group from 2 to the number of ranks.
  LocalGroupSite(const std::string& name, const std::string& axes,
                 const std::vector<std::shared_ptr<const Program>>& programs);

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override {
    return TakeRow(name_, ranks(), leaves, buffers);
  }
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override;
  void Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Forget(Executor& executor) const override;

  // The number of rounds that some rank has yet to join.
  size_t open_rounds() const;

  uint32_t ranks() const { return static_cast<uint32_t>(sites_.size()) + 1; }

 private:
  struct Round {
    int64_t run, number;
    GroupNumbers row;
    std::vector<bool> here;
    std::vector<Clock::time_point> came, left;  // by rank
    std::vector<double> own;                    // seconds since this rank's last call ended; negative for its first
    uint32_t num_here = 0;
    uint32_t num_left = 0;
    Status mismatch;
    bool failed = false;
  };
  struct Joined {
    std::shared_ptr<Round> round;
    Status mismatch;
    std::vector<bool> agreed;  // for the first rank with another row: the ranks that came before it; else empty
  };

  Joined Join(int64_t run, uint32_t rank, const GroupNumbers& row);
  Status Check(const Round& round, uint32_t rank, const GroupNumbers& row) const;
  LocalExecutor::Key KeyOf(int64_t run, const Round& round, int32_t group) const;
  const std::shared_ptr<LocalSite>& SiteOf(size_t size) const { return sites_[size - 2]; }
  void Leave(Round& round, uint32_t rank, const Status& status);
  void Record(const Round& round) const;

  const std::string name_, axes_;
  CallSiteStats places_;                           // of the sites below, whose ranks are places in groups that change
  std::vector<std::shared_ptr<LocalSite>> sites_;  // by size of group, from 2
  std::once_flag once_;
  Status status_;
  std::shared_ptr<SiteStats> stats_;

  // Failed runs whose open rounds are kept for ranks that arrive late.
  static constexpr size_t kFailedKept = 256;

  mutable std::mutex mutex_;
  std::map<int64_t, std::deque<std::shared_ptr<Round>>> rounds_;  // by run, those that some rank has yet to join
  BoundedMap<int64_t, bool> failed_{kFailedKept};                 // runs of which a round failed
  std::vector<Clock::time_point> left_;                           // when each rank's last call ended; zero before
  int64_t number_ = 0;
};

}  // namespace jaxcomm

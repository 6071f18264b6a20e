// A call site whose groups change from call to call: every rank brings the row that says in which group each rank is.
//
//   auto site = std::make_shared<GroupedSite>("pmean", "data", programs);   // programs for 2, 3, … ranks
//   site->SetLeaves(leaves, executor.stats());
//   site->Arrive(executor, run, rank, {0, 1, 0, 1}, buffers, [](const Status& status) { ... });   // returns at once
//
// Each group is a call of its own. A rank's k-th call in a run belongs to the k-th round of that run, so groups of
// different rounds never mix. All ranks must bring the same row: where they do not, calls that lack a rank by then fail
// with an error that says who brought what, as they do where a group is out of range. Thread-safe. Every callback runs
// exactly once, as the executor's do.
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
#include "cc/executor/executor.h"
#include "cc/executor/group_row.h"

namespace jaxcomm {

class GroupedSite : public std::enable_shared_from_this<GroupedSite> {
 public:
  using Row = GroupRow;

  // A program for each size of group from 2 to the number of ranks.
  GroupedSite(const std::string& name, const std::string& axes,
              const std::vector<std::shared_ptr<const Program>>& programs);

  // As of a Site: fixed at the first call.
  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats);

  void Arrive(Executor& executor, int64_t run, uint32_t rank, Row row, Buffers buffers, Done done);

  // The call site is gone, see Executor.
  void Forget(Executor& executor) const;

  // How many rounds somebody has yet to join.
  size_t open_rounds() const;

  uint32_t ranks() const { return static_cast<uint32_t>(sites_.size()) + 1; }

 private:
  struct Round {
    int64_t run, number;
    Row row;
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
    std::vector<bool> agreed;  // of the first rank that brings another row: who was there before it; else empty
  };

  Joined Join(int64_t run, uint32_t rank, const Row& row);
  Status Check(const Round& round, uint32_t rank, const Row& row) const;
  Executor::Key KeyOf(int64_t run, const Round& round, int32_t group) const;
  const std::shared_ptr<Site>& SiteOf(size_t size) const { return sites_[size - 2]; }
  void Leave(Round& round, uint32_t rank, const Status& status);
  void Record(const Round& round) const;

  const std::string name_, axes_;
  Stats places_;  // of the sites below, whose ranks are places in groups, never the same for long
  std::vector<std::shared_ptr<Site>> sites_;  // by size of group, from 2
  std::once_flag once_;
  Status status_;
  std::shared_ptr<SiteStats> stats_;

  // Runs whose open rounds are kept for ranks that come late.
  static constexpr size_t kFailedKept = 256;

  mutable std::mutex mutex_;
  std::map<int64_t, std::deque<std::shared_ptr<Round>>> rounds_;  // by run, those that somebody has yet to join
  BoundedMap<int64_t, bool> failed_{kFailedKept};                 // runs of which a round failed
  std::vector<Clock::time_point> left_;                           // when each rank's last call ended; zero before
  int64_t number_ = 0;
};

}  // namespace jaxcomm

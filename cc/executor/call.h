// One collective in flight: who has arrived, which ops may run, who is done.
//
//   Call call(site, /*names=*/nullptr, 412, Clock::now());
//   Progress progress = call.Arrive(rank, buffers, done, now);   // slices of the ops that this made ready, and
//   progress = call.Run(slice);                                  // more of them; ranks that are done
//
// Thread-safe; slices of different ops may run on different threads. The caller runs every slice it is given exactly
// once and invokes every completion it is given. After Fail nothing of any rank's memory is touched any more once the
// completions that Fail or the last running slice returns are invoked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "cc/executor/stats.h"
#include "cc/executor/step_choice.h"
#include "cc/executor/timer.h"
#include "cc/kernels/reduce.h"
#include "cc/program/program.h"

namespace jaxcomm {

// Whether each chunk of the program is one that the ranks' buffers have. A site must have been checked.
Status CheckChunks(Kind kind, const Program& program);

// What all calls of one call site have in common.
class Site {
 public:
  Site(std::string name, std::string axes, std::string plan, Kind kind, Reduction reduction,
       std::shared_ptr<const Program> program);

  // Before the first call: some run another program instead, as the choice says.
  void SetOther(std::shared_ptr<const Program> program, StepChoice::Rule rule);

  // Fixes the leaves at the first call; later calls find the same ones. For a reduce-scatter and an all-gather a leaf's
  // bytes are those of one slice.
  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats);

  // Of the next call: this site or its other one.
  static std::shared_ptr<const Site> Next(const std::shared_ptr<const Site>& site) {
    return site->other_ && site->choice_->Next() ? site->other_ : site;
  }
  bool is_other() const { return choice_ && !other_; }
  // None: calls run one program.
  StepChoice* choice() const { return choice_.get(); }

  const std::string& name() const { return name_; }
  const std::string& axes() const { return axes_; }
  const std::string& plan() const { return plan_; }
  Kind kind() const { return kind_; }
  const Program& program() const { return *program_; }
  const Layout& layout() const { return *layout_; }
  SiteStats& stats() const { return *stats_; }
  const std::vector<ReduceFn>& reduces() const { return reduces_; }

  // The bytes of the layout that an op works on.
  int64_t Begin(const Op& op) const;
  int64_t End(const Op& op) const;
  // Bytes read and stored by a whole call.
  int64_t work() const { return work_; }
  // Whether the ranks' buffers are together so large that what is stored leaves the caches before anybody reads it.
  bool streams() const { return streams_; }

 private:
  const std::string name_, axes_, plan_;
  const Kind kind_;
  const Reduction reduction_;
  const std::shared_ptr<const Program> program_;
  std::once_flag once_;
  Status status_;
  std::optional<Layout> layout_;
  std::vector<ReduceFn> reduces_;  // one per leaf
  std::shared_ptr<SiteStats> stats_;
  std::shared_ptr<StepChoice> choice_;  // the same in its other site
  std::shared_ptr<Site> other_;
  int64_t work_ = 0;
  bool streams_ = false;
};

struct OpSlice {
  uint32_t op;
  int64_t begin, end;
};

struct Progress {
  std::vector<OpSlice> slices;
  std::vector<Completion> completions;
};

// What messages call the ranks; none: 0, 1, 2 and so on.
using Names = std::shared_ptr<const std::vector<uint32_t>>;

class Call {
 public:
  Call(std::shared_ptr<const Site> site, Names names, int64_t number, Clock::time_point start);

  const Site& site() const { return *site_; }
  Clock::time_point start() const { return start_; }

  // A rank brings its buffers. If the call has failed, the only completion is this rank's.
  Progress Arrive(uint32_t rank, Buffers buffers, Done done, Clock::time_point now);
  Progress Run(const OpSlice& slice);

  // Ends the call with an error that names the ranks that are missing. Returns nothing if it is over already.
  Progress Expire(Clock::time_point now);
  // Ends the call with this error, unless it is over or everybody has arrived.
  Progress Fail(Status why);

  bool failed() const;
  bool everyone_arrived() const { return everyone_arrived_.load(std::memory_order_acquire); }

 private:
  void Reduce(const OpSlice& slice) const;
  void Split(uint32_t op, std::vector<OpSlice>& slices);
  void FinishOp(uint32_t op, Progress& progress);
  void Close(Clock::time_point now);
  Progress End(Status why);
  std::vector<uint32_t> Named(std::vector<uint32_t> ranks) const;
  std::vector<Completion> TakeWaiting();
  std::string Describe() const;

  const std::shared_ptr<const Site> site_;
  const Names names_;
  const int64_t number_;
  const Clock::time_point start_;

  mutable std::mutex mutex_;
  struct Rank {
    bool arrived = false;
    Buffers buffers;
    Done done;
    Clock::time_point at;
    uint32_t ops_left = 0;
  };
  std::vector<Rank> ranks_;
  std::vector<uint32_t> blockers_;     // per op: ranks to arrive and ops to finish before it may run
  std::vector<uint32_t> slices_left_;  // per op
  uint32_t arrived_ = 0;
  uint32_t ops_left_;
  uint32_t running_ = 0;
  int64_t early_work_ = 0;
  Status failure_;
  std::atomic<bool> everyone_arrived_{false};
};

}  // namespace jaxcomm

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
#include <string>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/local_site.h"
#include "cc/executor/timer.h"

namespace jaxcomm {

struct OpSlice {
  uint32_t op;
  int64_t begin, end;
};

struct Progress {
  std::vector<OpSlice> slices;
  std::vector<Completion> completions;
  bool is_undecided = false;  // one rank is missing: SelectMissing is due after the selector's grace
};

// The ranks' numbers in messages; none: 0, 1, 2 and so on.
using Names = std::shared_ptr<const std::vector<uint32_t>>;

class Call {
 public:
  // Its schedule is the one that the site's selector selects, now or when all ranks but one have come.
  Call(std::shared_ptr<const LocalSite> site, Names names, int64_t number, Clock::time_point start);

  const LocalSite& site() const { return *site_; }
  Clock::time_point start() const { return start_; }

  // A rank brings its buffers. If the call has failed, the only completion is this rank's.
  Progress Arrive(uint32_t rank, Buffers buffers, Done done, Clock::time_point now);
  Progress Run(const OpSlice& slice);
  // Begins the schedule for the one missing rank, unless the call has begun.
  Progress SelectMissing();

  // Ends the call with an error that names the ranks that are missing. Returns nothing if it is over already.
  Progress Expire(Clock::time_point now);
  // Ends the call with this error, unless it is over or everybody has arrived.
  Progress Fail(Status why);

  // These many ranks join; whether all have. The caller's lock keeps others from joining meanwhile.
  bool Join(uint32_t ranks) { return (joined_ += ranks) == ranks_.size(); }

  bool failed() const;
  bool everyone_arrived() const { return everyone_arrived_.load(std::memory_order_acquire); }

 private:
  void Select(uint32_t schedule);
  void SelectMissing(Progress& progress);
  void Begin(uint32_t rank, Progress& progress);
  void Reduce(const OpSlice& slice) const;
  void Split(uint32_t op, std::vector<OpSlice>& slices);
  void FinishOp(uint32_t op, Progress& progress);
  void Close(Clock::time_point now);
  Progress End(Status why);
  std::vector<uint32_t> Named(std::vector<uint32_t> ranks) const;
  std::vector<Completion> TakeWaiting();
  CallName name() const;

  const std::shared_ptr<const LocalSite> site_;
  std::shared_ptr<const LocalSite> selected_;  // has the call's schedule; null: that is yet to be selected
  const Names names_;
  const int64_t number_;
  const Clock::time_point start_;
  uint32_t joined_ = 0;

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
  uint32_t ops_left_ = 0;
  uint32_t running_ = 0;
  int64_t early_work_ = 0;
  Status failure_;
  std::atomic<bool> everyone_arrived_{false};
};

}  // namespace jaxcomm

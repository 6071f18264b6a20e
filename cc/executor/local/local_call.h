// One collective in flight. Knows which ranks have arrived, which ops may run, and which ranks are done.
//
//   LocalCall call(site, /*names=*/nullptr, 412, Clock::now());
//   Progress progress = call.Arrive(rank, buffers, done, now);   // slices of ops that have become ready
//   progress = call.Run(slice);                                  // more slices, and completions of ranks that are done
//
// Thread-safe; slices of different ops may run on different threads. The caller runs every slice of a Progress exactly
// once, and invokes every completion of a Progress. If a call fails while slices run, the Run that ends last returns
// the waiting ranks' completions. If a call fails while no slice runs, Fail or Expire returns these completions. The
// call does not access the ranks' memory after the completions have been returned.
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
#include "cc/executor/calls/buffers.h"
#include "cc/executor/local/local_site.h"
#include "cc/executor/threads/completion.h"
#include "cc/executor/threads/timer.h"

namespace jaxcomm {

struct OpSlice {
  uint32_t op;
  int64_t begin, end;
};

struct Progress {
  std::vector<OpSlice> slices;
  std::vector<Completion> completions;
  // Set if one rank is missing and no schedule is selected. The caller then calls SelectMissing after selector.grace().
  bool is_undecided = false;
};

// The ranks' numbers in error texts. Null: the numbers are 0, 1, 2, ….
using Names = std::shared_ptr<const std::vector<uint32_t>>;

class LocalCall {
 public:
  // If the site has a selector, the selector selects the call's schedule now, or later when all ranks but one have
  // arrived.
  LocalCall(std::shared_ptr<const LocalSite> site, Names names, int64_t number, Clock::time_point start);

  const LocalSite& site() const { return *site_; }
  Clock::time_point start() const { return start_; }

  // Makes a rank join with its buffers. If the call has failed, returns only this rank's completion.
  Progress Arrive(uint32_t rank, Buffers buffers, Done done, Clock::time_point now);
  Progress Run(const OpSlice& slice);
  // Begins the schedule for calls in which the missing rank is late. Does nothing if the call has begun or failed, or
  // if several ranks are missing.
  Progress SelectMissing();

  // Fails the call with an error that names the missing ranks, unless the call has failed or all ranks have arrived.
  Progress Expire(Clock::time_point now);
  // Fails the call with the error `why`, unless the call has failed or all ranks have arrived.
  Progress Fail(Status why);

  // Records that `ranks` more ranks have joined. Returns whether all ranks have joined. The caller holds a lock that
  // keeps other threads from calling Join at the same time.
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
  std::shared_ptr<const LocalSite> selected_;  // the site of the call's schedule; null until a schedule is selected
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
  std::vector<uint32_t> blockers_;     // per op: the number of ranks and ops that the op still waits for
  std::vector<uint32_t> slices_left_;  // per op
  uint32_t arrived_ = 0;
  uint32_t ops_left_ = 0;
  uint32_t running_ = 0;
  int64_t early_work_ = 0;
  Status failure_;
  std::atomic<bool> everyone_arrived_{false};
};

}  // namespace jaxcomm

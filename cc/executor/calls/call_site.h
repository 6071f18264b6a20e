// A place in a compiled step where ranks call a collective.
//
//   Status status = site->TakeLeading(leaves, buffers);               // at each call of a rank
//   if (status.ok()) status = site->SetLeaves(leaves, executor.stats());
//   if (status.ok()) site->Arrive(executor, run, rank, std::move(buffers), done);   // returns at once
//   if (!status.ok()) site->Refuse(executor, run, rank, status);
//   site->Forget(executor);                                           // before the site is destroyed
//
// Thread-safe. `done` runs exactly once per Arrive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/calls/layout.h"
#include "cc/executor/threads/completion.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm {

class CallSiteStats;
class LocalExecutor;
class MessageCalls;

// The executors of a process.
class Executors {
 public:
  virtual LocalExecutor& local() = 0;
  virtual MessageCalls& messages() = 0;

 protected:
  ~Executors() = default;
};

class CallSite {
 public:
  virtual ~CallSite() = default;

  // Moves the first operand from the leaves to `buffers.leading`, if this operand describes the call instead of being
  // part of the call's data.
  virtual Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const {
    (void)leaves, (void)buffers;
    return Status();
  }

  // Sets the leaves at the first call; later calls must have the same leaves. In a reduce-scatter and an all-gather, a
  // leaf's `bytes` are the bytes of one slice. Fails if the schedule cannot run the collective on these leaves.
  virtual Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) = 0;

  // Makes a rank of this process join its next call. `run`: XLA's number of the launch.
  virtual void Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) = 0;

  // Fails the next call of a rank of this process, because the rank cannot join the call. The ranks of other processes
  // get the error `why`.
  virtual void Refuse(Executors& executors, int64_t run, uint32_t rank, const Status& why) const {
    (void)executors, (void)run, (void)rank, (void)why;
  }

  // Drops the site's failed calls, which were kept so that late ranks get the error.
  virtual void Forget(Executors& executors) const = 0;

 protected:
  CallSite() = default;
  CallSite(const CallSite&) = default;
};

// Implements TakeLeading: moves the first operand to `buffers.leading`. Fails with `message` unless the operand has the
// type and size `expected`.
Status TakeFirst(const Leaf& expected, const std::string& message, std::vector<Leaf>& leaves, Buffers& buffers);

// Finds the kernel of each leaf. Fails if a leaf's type has no kernel for the reduction.
Status FindReduces(const std::string& name, Kind kind, Reduction reduction, const std::vector<Leaf>& leaves,
                   std::vector<ReduceFn>& reduces);

}  // namespace jaxcomm

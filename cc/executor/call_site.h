// A place in a compiled step where ranks call a collective.
//
//   Status status = site->TakeLeading(leaves, buffers);               // at each call of a rank
//   if (status.ok()) status = site->SetLeaves(leaves, executor.stats());
//   if (status.ok()) site->Arrive(executor, run, rank, std::move(buffers), done);   // returns at once
//   if (!status.ok()) site->Refuse(executor, run, rank, status);
//   site->Forget(executor);                                           // before the site is destroyed
//
// Thread-safe. `done` runs exactly once, as the executor promises.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "cc/kernels/reduce.h"

namespace jaxcomm {

class Executor;
class CallSiteStats;

class CallSite {
 public:
  virtual ~CallSite() = default;

  // Moves the first operand to `buffers.leading` if it describes the call and is no data of it.
  virtual Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const {
    (void)leaves, (void)buffers;
    return Status();
  }

  // Fixes the leaves at the first call; later calls have the same ones. In a reduce-scatter and an all-gather a leaf's
  // bytes are those of one slice. An error: the schedule does not make this collective of them.
  virtual Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) = 0;

  // A rank of this process calls. `run`: XLA's number of the launch.
  virtual void Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) = 0;

  // A rank of this process cannot call: the ranks of other processes get this error.
  virtual void Refuse(Executor& executor, int64_t run, uint32_t rank, const Status& why) const {
    (void)executor, (void)run, (void)rank, (void)why;
  }

  // Frees what failed calls keep for ranks that arrive late.
  virtual void Forget(Executor& executor) const = 0;

 protected:
  CallSite() = default;
  CallSite(const CallSite&) = default;
};

// For TakeLeading: the first operand must be `expected`, or the error is `message`.
Status TakeFirst(const Leaf& expected, const std::string& message, std::vector<Leaf>& leaves, Buffers& buffers);

// The kernel of each leaf. An error: there is none for a leaf's type.
Status FindReduces(const std::string& name, Kind kind, Reduction reduction, const std::vector<Leaf>& leaves,
                   std::vector<ReduceFn>& reduces);

}  // namespace jaxcomm

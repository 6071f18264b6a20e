// A call site between processes whose calls follow plans that are switched in the run.
//
//   Result<std::shared_ptr<PlannedSite>> site = PlannedSite::Make(
//       {"psum", "data", "auto", "train.py:57"}, Reduction::kSum, communicator, /*site=*/3, groups, registry,
//       process);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());
//   site.value()->Arrive(executor, switches, run, rank, buffers, done);   // returns at once
//
// The calls of one plan are those of a MessageSite; their statistics are that plan's. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/executor/message_site.h"
#include "cc/executor/plan_switches.h"
#include "cc/program/message_registry.h"

namespace jaxcomm {

class PlannedSite : public std::enable_shared_from_this<PlannedSite> {
 public:
  // An all-reduce. The groups name the lists that its calls run without a plan. Errors as of a MessageSite.
  static Result<std::shared_ptr<PlannedSite>> Make(MessageSite::Label label, Reduction reduction, uint64_t communicator,
                                                   uint32_t site, std::vector<MessageGroup> groups,
                                                   MessageRegistry& registry, uint32_t process);

  // Fixes the leaves at the first call, as of a MessageSite.
  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats) { return own_->SetLeaves(leaves, stats); }

  void Arrive(Executor& executor, PlanSwitches& switches, int64_t run, uint32_t rank, Buffers buffers, Done done);

  // The call site is gone, see Executor.
  void Forget(Executor& executor) const;

  // What its calls have in common, whatever plan they follow.
  const MessageSite& own() const { return *own_; }

 private:
  PlannedSite(Reduction reduction, std::vector<MessageGroup> groups, MessageRegistry& registry)
      : reduction_(reduction), groups_(std::move(groups)), registry_(registry) {}

  Result<std::shared_ptr<MessageSite>> With(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                            uint32_t process, const PlannedLists* plan) const;
  Result<std::shared_ptr<MessageSite>> Following(const std::shared_ptr<const PlannedLists>& plan, Executor& executor);

  const Reduction reduction_;
  const std::vector<MessageGroup> groups_;
  MessageRegistry& registry_;
  std::shared_ptr<MessageSite> own_;

  mutable std::mutex mutex_;
  std::shared_ptr<const PlannedLists> plan_;  // the latest
  std::shared_ptr<MessageSite> planned_;      // by it
};

}  // namespace jaxcomm

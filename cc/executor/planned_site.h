// A call site between processes whose calls follow plans that are switched in the run.
//
//   Result<std::shared_ptr<PlannedSite>> site = PlannedSite::Make(
//       {"psum", "data", "auto", "train.py:57"}, Reduction::kSum, communicator, /*site=*/3, groups, registry,
//       switches, process);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());
//   site.value()->Arrive(executor, run, rank, buffers, done);   // returns at once
//   site.value()->Arrive(executor, call, rank, buffers, done);  // the caller names the execution
//
// The calls of one plan are those of a MessageSite; their statistics are that plan's. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "cc/executor/call_site.h"
#include "cc/executor/executor.h"
#include "cc/executor/message_site.h"
#include "cc/executor/plan_switches.h"
#include "cc/program/message_registry.h"

namespace jaxcomm {

// The plan's name in calls that follow the plan of the run.
inline constexpr std::string_view kAuto = "auto";

class PlannedSite : public CallSite, public std::enable_shared_from_this<PlannedSite> {
 public:
  // An all-reduce. The groups name the lists that its calls run without a plan. Errors as of a MessageSite.
  static Result<std::shared_ptr<PlannedSite>> Make(MessageSite::Label label, Reduction reduction, uint64_t communicator,
                                                   uint32_t site, std::vector<MessageGroup> groups,
                                                   MessageRegistry& registry, PlanSwitches& switches, uint32_t process);

  // Before the first call: results and operands have memory of their own.
  void SeparateResults() {
    is_in_place_ = false;
    own_->SeparateResults();
  }

  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats) override { return own_->SetLeaves(leaves, stats); }
  void Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) override {
    Start(executor, executor.messages().LaunchOf(*own_, run), run, rank, std::move(buffers), std::move(done));
  }
  void Arrive(Executor& executor, const CallId& call, uint32_t rank, Buffers buffers, Done done) {
    Start(executor, call.launch, call, rank, std::move(buffers), std::move(done));
  }
  void Refuse(Executor& executor, int64_t run, uint32_t rank, const Status& why) const override {
    own_->Refuse(executor, run, rank, why);
  }
  void Forget(Executor& executor) const override;

 private:
  PlannedSite(Reduction reduction, std::vector<MessageGroup> groups, MessageRegistry& registry, PlanSwitches& switches)
      : reduction_(reduction), groups_(std::move(groups)), registry_(registry), switches_(switches) {}

  // `call`: XLA's number of the launch, or the call's name.
  template <typename Call>
  void Start(Executor& executor, uint32_t launch, const Call& call, uint32_t rank, Buffers buffers, Done done);
  Result<std::shared_ptr<MessageSite>> With(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                            uint32_t process, const PlannedLists* plan) const;
  Result<std::shared_ptr<MessageSite>> Following(const std::shared_ptr<const PlannedLists>& plan, Executor& executor);

  const Reduction reduction_;
  const std::vector<MessageGroup> groups_;
  MessageRegistry& registry_;
  PlanSwitches& switches_;
  std::shared_ptr<MessageSite> own_;  // without a plan
  bool is_in_place_ = true;

  mutable std::mutex mutex_;
  std::shared_ptr<const PlannedLists> plan_;  // the latest
  std::shared_ptr<MessageSite> planned_;      // by it
};

}  // namespace jaxcomm

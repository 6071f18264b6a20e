#include "cc/executor/planned_site.h"

#include <string>
#include <utility>

namespace jaxcomm {

Result<std::shared_ptr<PlannedSite>> PlannedSite::Make(MessageSite::Label label, Reduction reduction,
                                                       uint64_t communicator, uint32_t site,
                                                       std::vector<MessageGroup> groups, MessageRegistry& registry,
                                                       PlanSwitches& switches, uint32_t process) {
  std::shared_ptr<PlannedSite> made(new PlannedSite(reduction, std::move(groups), registry, switches));
  Result<std::shared_ptr<MessageSite>> own = made->With(std::move(label), communicator, site, process, nullptr);
  if (!own.ok()) return own.status();
  made->own_ = std::move(own.value());
  return made;
}

Result<std::shared_ptr<MessageSite>> PlannedSite::With(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                                       uint32_t process, const PlannedLists* plan) const {
  std::vector<MessageGroup> groups = groups_;
  for (MessageGroup& group : groups) {
    const auto ranks = static_cast<uint32_t>(group.ranks.size());
    const PlannedLists::Range* const planned = plan ? plan->Find(ranks, own_->layout().payload()) : nullptr;
    if (planned) group.list = planned->name;
    group.lists.clear();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const bool is_here = group.ranks[rank].process == process;
      group.lists.push_back(!is_here ? nullptr : planned ? planned->lists[rank] : registry_.Find(group.list, rank));
    }
  }
  Result<std::shared_ptr<MessageSite>> made =
      MessageSite::Make(std::move(label), Kind::kAllReduce, reduction_, communicator, site, groups, process);
  if (made.ok() && !is_in_place_) made.value()->SeparateResults();
  return made;
}

Result<std::shared_ptr<MessageSite>> PlannedSite::Following(const std::shared_ptr<const PlannedLists>& plan,
                                                            Executor& executor) {
  if (!plan) return own_;
  std::lock_guard<std::mutex> lock(mutex_);
  if (plan == plan_) return planned_;
  MessageSite::Label label = own_->label();
  label.plan = plan->plan;
  Result<std::shared_ptr<MessageSite>> made =
      With(std::move(label), own_->communicator(), own_->site(), own_->process(), plan.get());
  if (!made.ok()) return made;
  if (Status status = made.value()->SetLeaves(own_->layout().leaves(), executor.stats()); !status.ok()) return status;
  if (planned_) executor.messages().Forget(planned_.get());
  plan_ = plan;
  planned_ = made.value();
  return made;
}

template <typename Call>
void PlannedSite::Start(Executor& executor, uint32_t launch, const Call& call, uint32_t rank, Buffers buffers,
                        Done done) {
  const auto arrive = [self = shared_from_this(), &executor, call, rank, buffers = std::move(buffers),
                       done = std::move(done)](Status refused, const std::shared_ptr<const PlannedLists>& plan) {
    std::shared_ptr<MessageSite> site = self->own_;
    if (refused.ok()) {
      Result<std::shared_ptr<MessageSite>> planned = self->Following(plan, executor);
      if (planned.ok()) site = std::move(planned.value());
      refused = planned.status();
    }
    executor.messages().Arrive(site, call, rank, buffers, done, refused);
  };
  switches_.Follow(
      own_->communicator(), launch, own_->step(),
      [&executor, arrive](const Status& status, const std::shared_ptr<const PlannedLists>& plan, bool has_waited) {
        if (!has_waited) return arrive(status, plan);
        // The callback may run the rest of a device's program and block, which must not stop the thread that decides.
        executor.Delay(Clock::duration::zero(),
                       [arrive, status, plan](const Status& delayed) { arrive(status.ok() ? delayed : status, plan); });
      });
}

template void PlannedSite::Start(Executor&, uint32_t, const int64_t&, uint32_t, Buffers, Done);
template void PlannedSite::Start(Executor&, uint32_t, const CallId&, uint32_t, Buffers, Done);

void PlannedSite::Forget(Executor& executor) const {
  own_->Forget(executor);
  std::lock_guard<std::mutex> lock(mutex_);
  if (planned_) executor.messages().Forget(planned_.get());
}

}  // namespace jaxcomm

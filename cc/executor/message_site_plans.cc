// The sites of a call site whose calls follow the plan of the run.
#include <utility>
#include <vector>

#include "cc/executor/message_site.h"

namespace jaxcomm {

Result<std::shared_ptr<const MessageSite>> MessageSite::Following(
    const std::shared_ptr<const PlannedLists>& plan) const {
  if (!plan) return shared_from_this();
  std::lock_guard<std::mutex> lock(followed_->mutex);
  if (plan == followed_->plan) return followed_->site;
  std::vector<Members> groups;
  for (const std::vector<uint32_t>& ranks : groups_) {
    const PlannedLists::Range* const planned = plan->Find(ranks.size(), layout().payload());
    Members& group = groups.emplace_back(Members{ranks, lists_[groups.size()], {}});
    if (planned) group.list = planned->name, group.lists = planned->lists;
    for (size_t i = 0; !planned && i < ranks.size(); ++i) {
      const std::optional<uint32_t> local = FindLocal(ranks[i]);
      group.lists.push_back(local ? locals_[*local].list : nullptr);
    }
  }
  std::shared_ptr<MessageSite> made(new MessageSite(*this));
  made->followed_ = nullptr;
  made->label_.plan = plan->plan;
  if (Status status = made->SetGroups(groups); !status.ok()) return status;
  if (Status status = made->MakeGraphs(); !status.ok()) return status;
  made->Describe();
  made->FindExchanging();
  made->CountCalls();
  followed_->plan = plan;
  followed_->site = std::move(made);
  return followed_->site;
}

}  // namespace jaxcomm

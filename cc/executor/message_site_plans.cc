// The sites of a call site whose calls select their schedule, or follow the plan of the run.
#include <algorithm>
#include <utility>
#include <vector>

#include "cc/executor/message_site.h"

namespace jaxcomm {

void MessageSite::SelectFrom(std::vector<std::shared_ptr<MessageSite>> others,
                             std::shared_ptr<ScheduleSelector> selector) {
  selector_ = std::move(selector);
  selected_ = std::move(others);
  for (uint32_t i = 0; i < selected_.size(); ++i) {
    selected_[i]->selector_ = selector_;
    selected_[i]->schedule_ = i + 1;
  }
}

bool MessageSite::HasFingerprint(uint64_t fingerprint) const {
  const auto is = [fingerprint](const auto& other) { return other->fingerprint() == fingerprint; };
  return fingerprint == fingerprint_ || std::any_of(selected_.begin(), selected_.end(), is);
}

std::shared_ptr<const MessageSite> MessageSite::With(uint32_t schedule) const {
  if (schedule == ScheduleSelector::kDefault || schedule > selected_.size()) return shared_from_this();
  return selected_[schedule - 1];
}

Result<std::shared_ptr<const MessageSite>> MessageSite::Following(
    const std::shared_ptr<const PlannedLists>& plan) const {
  const auto is_another_size = [&](const auto& ranks) { return ranks.size() != plan->ranks; };
  if (!plan || std::all_of(groups_.begin(), groups_.end(), is_another_size)) return shared_from_this();
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
  made->Describe();
  made->FindExchanging();
  made->CountCalls();
  followed_->plan = plan;
  followed_->site = std::move(made);
  return followed_->site;
}

}  // namespace jaxcomm

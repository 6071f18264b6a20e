// The statistics of a call between processes.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cc/executor/message_call.h"

namespace jaxcomm {

// Of the ranks in this process's groups; other groups are not known here.
void MessageCall::Record() {
  if (std::exchange(recorded_, true)) return;
  const std::vector<uint32_t>& own = site_->GroupOf(rank(0));
  const size_t count = site_->is_regrouped() ? ranks_.size() : own.size();
  CallRecord record;
  record.arrivals.resize(count, CallRecord::kUnknown);
  record.waits.resize(count);
  Clock::time_point first = ranks_[own[0]].at;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (site_->Concerns(rank)) first = std::min(first, ranks_[rank].at);
  }
  for (const std::vector<uint32_t>& group : site_->groups()) {
    if (!site_->Concerns(group[0]) || (!site_->is_regrouped() && &group != &own)) continue;
    const auto earlier = [this](uint32_t one, uint32_t other) { return ranks_[one].at < ranks_[other].at; };
    const auto last = std::max_element(group.begin(), group.end(), earlier);
    for (uint32_t i = 0; i < group.size(); ++i) {
      const uint32_t at = site_->is_regrouped() ? group[i] : i;
      record.arrivals[at] = Seconds(ranks_[group[i]].at - first);
      record.waits[at] = Seconds(ranks_[*last].at - ranks_[group[i]].at);
      if (group[i] == *last && group.size() > 1) record.last.push_back(at);
      const std::optional<uint32_t> local = site_->FindLocal(group[i]);
      if (!local || locals_[*local].done) continue;
      record.after_arrival = std::max(record.after_arrival, Seconds(locals_[*local].ended - ranks_[*last].at));
    }
  }
  record.is_early =
      site_->selector() && site_->selector()->has_late_rank() && site_->schedule() == ScheduleSelector::kDefault;
  record.lacks_rail = site_->selector() && site_->selector()->IsForLostRail(site_->schedule());
  if (ScheduleSelector* const selector = site_->selector()) {
    selector->RecordCall(
        static_cast<uint32_t>(ranks_.size()), [this](uint32_t rank) { return ranks_[rank].at; }, site_->schedule(),
        record.after_arrival);
  }
  if (site_->is_regrouped()) record.own = Own();
  const int64_t work = graph(0).work();
  record.early_share = work > 0 ? static_cast<double>(early_work_) / static_cast<double>(work) : 0;
  site_->stats().Record(std::move(record));
}

// None: a rank of this process has come for the first time.
std::vector<double> MessageCall::Own() const {
  std::vector<double> own(ranks_.size(), CallRecord::kUnknown);
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    if (locals_[local].own < 0) return {};
    own[rank(local)] = locals_[local].own;
  }
  return own;
}

}  // namespace jaxcomm

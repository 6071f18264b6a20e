// How a call between processes fails, and what keeps one from its end.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/executor/message_call.h"

namespace jaxcomm {

MessageSteps MessageCall::Fail(Status why, bool announce) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(std::move(why), announce, steps);
  return steps;
}

void MessageCall::FailLocked(Status why, bool announce, MessageSteps& steps) {
  if (!failure_.ok()) return;
  if (locals_left_ == 0) {
    steps.over = true;
    return;
  }
  failure_ = std::move(why);
  site_->stats().RecordFailure();
  steps.failed = announce;
  for (Rank& rank : ranks_) rank.unsent.clear();
  StopRunning(0, steps);
}

MessageSteps MessageCall::PeerGone(uint32_t process, const Status& why) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  if (locals_left_ == 0) {
    steps.over = true;
    return steps;
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (site_->ranks()[rank].process != process || !site_->Concerns(rank)) continue;
    if (ranks_[rank].arrived) continue;
    FailLocked(RankGone{name(), site_->NameOf(rank), site_->PlaceOf(rank), why.message()}.status(),
               /*announce=*/true, steps);
  }
  return steps;
}

std::vector<Completion> MessageCall::TakeWaiting() {
  std::vector<Completion> completions;
  std::vector<std::optional<MessageMemory>> released;  // after the lock: a send of this call may wait for a view
  std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    if (!locals_[local].done) continue;
    completions.push_back(
        {rank(local), std::exchange(locals_[local].done, nullptr), failure_, locals_[local].done_is_quick});
  }
  for (Local& local : locals_) {
    released.push_back(std::move(local.memory));
    local.memory.reset();
  }
  return completions;
}

std::optional<MessageCall::Delay> MessageCall::Overdue(Clock::time_point now, double deadline) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok() || IsOver()) return std::nullopt;
  Delay delay;
  delay.waited = now - (missing_ > 0 ? start_ : progress_);
  if (Seconds(delay.waited) < deadline) return std::nullopt;
  const ScheduleSelector* const selector = site_->selector();
  std::vector<uint32_t> unscheduled;  // they have announced that they wait, and the schedule is known here
  const bool decided = !selector || selector->Find(id_);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!site_->Concerns(rank)) continue;
    const bool is_here = ranks_[rank].arrived || (ranks_[rank].waits && !decided);
    (is_here ? delay.waiting : ranks_[rank].waits ? unscheduled : delay.missing).push_back(rank);
    if (missing_ == 0 && ranks_[rank].receives_left > 0) delay.silent.push_back(rank);
  }
  delay.lack_schedule = delay.missing.empty() && !unscheduled.empty();
  std::vector<uint32_t>& also = delay.lack_schedule ? delay.missing : delay.waiting;
  also.insert(also.end(), unscheduled.begin(), unscheduled.end());
  std::sort(also.begin(), also.end());
  return delay;
}

Status MessageCall::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace jaxcomm

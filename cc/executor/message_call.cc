#include "cc/executor/message_call.h"

#include <algorithm>
#include <new>
#include <utility>

#include "cc/base/error_texts.h"
#include "cc/base/text.h"

namespace jaxcomm {
namespace {

// Up to this size a message is sent before its receiver has arrived, as all messages of a small call are: the transport
// keeps it.
constexpr int64_t kEarlyBytes = 16 << 10;

}  // namespace

MessageCall::MessageCall(std::shared_ptr<const MessageSite> site, const CallId& id, int64_t number, uint32_t first,
                         Clock::time_point start)
    : site_(std::move(site)),
      id_(id),
      number_(number),
      first_(first),
      start_(start),
      lacks_schedule_(site_->selector() && site_->selector()->Find(id) != site_->schedule()),
      locals_(site_->locals().size()),
      ranks_(site_->ranks().size()),
      locals_left_(static_cast<uint32_t>(locals_.size())),
      progress_(start) {
  // A message that waits for another rank of the process waits for the same sender's message to that one.
  copies_views_ = locals_.size() > 1;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) missing_ += site_->Concerns(rank) ? 1 : 0;
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    const std::vector<MessageTask>& tasks = graph(local).tasks();
    locals_[local].tasks_left = static_cast<uint32_t>(tasks.size());
    locals_[local].blockers.reserve(tasks.size());
    for (const MessageTask& task : tasks) {
      locals_[local].blockers.push_back(task.num_waits);
      if (task.kind == MessageTask::Kind::kReceive) ++ranks_[RankOf(local, task.peers[0].rank)].receives_left;
    }
  }
}

uint32_t MessageCall::RankOf(uint32_t local, uint32_t in_group) const { return site_->GroupOf(rank(local))[in_group]; }

MessageId MessageCall::Id(const MessageStep& step, const MessageTask::Peer& peer) const {
  const MessageTask& it = task(step);
  const uint32_t self = rank(step.local), other = RankOf(step.local, peer.rank);
  const bool sends = it.kind == MessageTask::Kind::kSend;
  // Ranks that are in different calls by one name must not take each other's messages, whose sizes may differ.
  const uint32_t index = peer.index ^ static_cast<uint32_t>(site_->fingerprint());
  return {id_, sends ? self : other, sends ? other : self, index, it.segment, site_->layout().payload()};
}

MessageSteps MessageCall::Arrive(uint32_t rank, Buffers buffers, Done&& done, Clock::time_point now) {
  MessageSteps steps;
  steps.completions.reserve(1);
  const uint32_t index = *site_->FindLocal(rank);
  std::lock_guard<std::mutex> lock(mutex_);
  Local& local = locals_[index];
  if (ranks_[rank].arrived) {
    Status twice(Code::kInternal, Describe() + ": rank " + std::to_string(rank) + " came twice");
    steps.completions.push_back({rank, std::move(done), std::move(twice)});
    return steps;
  }
  local.done_is_quick = buffers.done_is_quick;
  try {
    if (failure_.ok()) local.memory.emplace(*site_, graph(index), std::move(buffers));
  } catch (const std::bad_alloc&) {
    FailLocked(NoMemory{name(), site_->NameOf(rank), graph(index).scratch_bytes()}.status(), /*announce=*/true, steps);
  }
  MarkArrived(rank, now, steps);
  if (!failure_.ok()) {
    Status why = failure_;
    steps.completions.push_back({rank, std::move(done), std::move(why)});
    return steps;
  }
  steps.arrived = rank;
  local.done = std::move(done);
  if (site_->is_regrouped()) local.own = site_->SecondsSinceLeft(rank, now);
  try {
    for (uint32_t task = 0; task < local.blockers.size(); ++task) {
      if (graph(index).tasks()[task].num_waits == 0) Begin(index, task, steps);
    }
  } catch (const std::bad_alloc&) {
    FailLocked(NoMemory{name(), site_->NameOf(rank)}.status(), /*announce=*/true, steps);
  }
  CheckEnd(index, steps);
  return steps;
}

MessageSteps MessageCall::PeerArrived(const Arrival& arrival, uint32_t process, Clock::time_point now) {
  MessageSteps steps;
  const uint32_t rank = arrival.rank;
  if (rank >= ranks_.size() || site_->ranks()[rank].process != process) return steps;
  std::lock_guard<std::mutex> lock(mutex_);
  if (arrival.waits) {
    if (!ranks_[rank].arrived) ranks_[rank].at = now;
    ranks_[rank].waits = true;
    if (lacks_schedule_ && !Accepts(arrival.fingerprint)) FailLocked(Differs(rank, arrival.text), true, steps);
    return steps;
  }
  if (site_->Concerns(rank) && !ranks_[rank].arrived) MarkArrived(rank, now, steps);
  if (!Accepts(arrival.fingerprint)) FailLocked(Differs(rank, arrival.text), /*announce=*/true, steps);
  for (uint32_t local = 0; local < locals_.size(); ++local) CheckEnd(local, steps);
  return steps;
}

void MessageCall::MarkArrived(uint32_t rank, Clock::time_point now, MessageSteps& steps) {
  ranks_[rank].arrived = true;
  if (!ranks_[rank].waits) ranks_[rank].at = now;  // it had come when it began to wait
  progress_ = std::max(progress_, now);
  --missing_;
  if (!failure_.ok()) return;
  running_ += ranks_[rank].unsent.size();
  for (MessageStep& step : ranks_[rank].unsent) steps.tasks.push_back(std::move(step));
  ranks_[rank].unsent.clear();
}

// A task that waits for nothing more is to be started; a send, to those receivers that may have it now.
void MessageCall::Begin(uint32_t local, uint32_t task, MessageSteps& steps) {
  const MessageTask& it = graph(local).tasks()[task];
  MessageStep step{local, task, {}};
  if (it.kind == MessageTask::Kind::kSend) {
    locals_[local].blockers[task] = static_cast<uint32_t>(it.peers.size());
    for (uint32_t peer = 0; peer < it.peers.size(); ++peer) {
      Rank& receiver = ranks_[RankOf(local, it.peers[peer].rank)];
      if (receiver.arrived || (!it.is_lossy && (site_->is_small() || it.end - it.begin <= kEarlyBytes))) {
        step.peers.push_back(peer);
      } else {
        receiver.unsent.push_back({local, task, {peer}});
      }
    }
    if (step.peers.empty()) return;
  }
  steps.tasks.push_back(std::move(step));
  ++running_;
}

void MessageCall::End(uint32_t local, uint32_t task, MessageSteps& steps) {
  const MessageTask& it = graph(local).tasks()[task];
  progress_ = Clock::now();
  if (it.kind == MessageTask::Kind::kReceive) --ranks_[RankOf(local, it.peers[0].rank)].receives_left;
  for (const uint32_t next : it.waiting) {
    if (--locals_[local].blockers[next] == 0) Begin(local, next, steps);
  }
  --locals_[local].tasks_left;
  CheckEnd(local, steps);
}

void MessageCall::CheckEnd(uint32_t local, MessageSteps& steps) {
  Local& it = locals_[local];
  if (!failure_.ok() || it.tasks_left > 0 || !it.memory) return;
  if (it.done) {
    steps.completions.push_back({rank(local), std::exchange(it.done, nullptr), Status(), it.done_is_quick});
    --locals_left_;
    it.ended = Clock::now();
    if (it.memory->lost_bytes() > 0) site_->stats().RecordLoss(it.memory->lost_bytes());
    if (site_->is_regrouped()) site_->Leave(rank(local), it.ended);
  }
  if (missing_ == 0 && (site_->is_regrouped() ? locals_left_ == 0 : local == 0)) Record();
  if (IsOver()) steps.over = true;
}

MessageSteps MessageCall::Received(const MessageStep& step, const Status& status, std::shared_ptr<const std::byte> view,
                                   bool may_keep, const std::vector<ByteRange>& lost) {
  MessageSteps steps;
  const MessageTask& it = task(step);
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.ok()) return steps;
  MessageMemory& bytes = memory(step.local);
  const uint32_t from = RankOf(step.local, it.peers[0].rank);
  if (!status.ok()) {
    FailLocked(RankGone{name(), site_->NameOf(from), site_->PlaceOf(from), status.message()}.status(),
               /*announce=*/true, steps);
    return steps;
  }
  if (view) {
    if (it.waiting.empty()) {
      CopyView(step, std::move(view), lock, steps);
    } else if (locals_[step.local].blockers[it.waiting[0]] == 1) {
      bytes.Keep(it, std::move(view));
    } else if (may_keep || !copies_views_) {
      bytes.Keep(it, std::move(view));
      if (!copies_views_) kept_.push_back(step);
      if (!may_keep) steps.keeps_too_much = !std::exchange(keeps_too_much_, true);
    } else {
      CopyView(step, std::move(view), lock, steps);
    }
    if (!failure_.ok()) return steps;
  }
  if (!lost.empty()) bytes.Lose(it, lost);
  End(step.local, step.task, steps);
  return steps;
}

// With the lock, which is open while it copies.
void MessageCall::CopyView(const MessageStep& step, std::shared_ptr<const std::byte> view,
                           std::unique_lock<std::mutex>& lock, MessageSteps& steps) {
  ++running_;
  lock.unlock();
  memory(step.local).Copy(task(step), view.get());
  view.reset();  // a send of this call may wait for it
  lock.lock();
  StopRunning(1, steps);
}

MessageSteps MessageCall::CopyViews(Clock::time_point unless_after) {
  MessageSteps steps;
  std::unique_lock<std::mutex> lock(mutex_);
  if (locals_left_ == 0) return steps;
  if (progress_ > unless_after) {
    steps.keeps_too_much = true;
    return steps;
  }
  copies_views_ = true;
  for (const MessageStep& step : std::exchange(kept_, {})) {
    if (!failure_.ok()) return steps;
    const uint32_t addition = task(step).waiting[0];
    uint32_t& blockers = locals_[step.local].blockers[addition];
    if (blockers == 0) continue;  // it has begun
    ++blockers;
    CopyView(step, memory(step.local).Take(task(step)), lock, steps);
    if (failure_.ok() && --blockers == 0) Begin(step.local, addition, steps);
  }
  return steps;
}

MessageSteps MessageCall::Sent(const MessageStep& step, const Status& status) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return steps;
  if (!status.ok()) {
    const uint32_t to = RankOf(step.local, task(step).peers[step.peers[0]].rank);
    const Status one = RankGone{name(), site_->NameOf(to), site_->PlaceOf(to), status.message()}.status();
    const Status some(Code::kInternal, Describe() + ": " + status.message() +
                                           ".\n  Cure: see what that process wrote last, and start " + kStartAgain);
    FailLocked(step.peers.size() == 1 ? one : some, /*announce=*/true, steps);
    return steps;
  }
  uint32_t& receivers = locals_[step.local].blockers[step.task];
  receivers -= static_cast<uint32_t>(step.peers.size());
  if (receivers == 0) End(step.local, step.task, steps);
  return steps;
}

MessageSteps MessageCall::Add(const MessageStep& step) {
  MessageSteps steps;
  const MessageTask& it = task(step);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) {
      StopRunning(1, steps);
      return steps;
    }
    if (missing_ > 0 && step.local == 0) {
      early_work_ += (it.end - it.begin) * static_cast<int64_t>(it.operands.size() + 1);
    }
  }
  memory(step.local).Add(it);
  std::lock_guard<std::mutex> lock(mutex_);
  StopRunning(1, steps);
  if (failure_.ok()) End(step.local, step.task, steps);
  return steps;
}

MessageSteps MessageCall::Started(size_t count) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  StopRunning(count, steps);
  return steps;
}

void MessageCall::StopRunning(size_t count, MessageSteps& steps) {
  running_ -= count;
  if (failure_.ok() || running_ > 0 || ended_) return;
  ended_ = true;
  steps.ended = true;
}

bool MessageCall::AllHereHaveArrived() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(site_->locals().begin(), site_->locals().end(),
                     [this](const MessageSite::Local& local) { return ranks_[local.rank].arrived; });
}

}  // namespace jaxcomm

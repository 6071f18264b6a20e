#include "cc/executor/messages/message_call.h"

#include <algorithm>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/text.h"
#include "cc/executor/messages/call_names.h"

namespace jaxcomm {
namespace {

// Lossless messages are sent before their receiver arrives if they have at most this size or belong to a small call.
// The transport keeps such messages until the receiver arrives.
constexpr int64_t kEarlyBytes = 16 << 10;

}  // namespace

MessageCall::MessageCall(std::shared_ptr<const MessageSite> site, const CallId& id, int64_t number, uint32_t first,
                         Clock::time_point start, Status refused)
    : site_(std::move(site)),
      id_(id),
      number_(number),
      first_(first),
      start_(start),
      lacks_schedule_(site_->selector() && site_->selector()->Find(id) != site_->schedule()),
      locals_(site_->ranks().locals().size()),
      ranks_(site_->ranks().size()),
      locals_left_(static_cast<uint32_t>(locals_.size())),
      progress_(start),
      refused_(std::move(refused)) {
  // If several ranks are in this process, a view that is kept for one rank may block the same sender's messages to
  // another rank. A view whose addition must wait is then kept only if the transport allows it.
  copies_views_ = locals_.size() > 1;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) missing_ += site_->ranks().Concerns(rank) ? 1 : 0;
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    const std::vector<MessageTask>& tasks = graph(local).tasks();
    locals_[local].tasks_left = static_cast<uint32_t>(tasks.size());
    locals_[local].blockers.reserve(tasks.size());
    locals_[local].unfreed.assign(tasks.size(), 1);
    for (const MessageTask& task : tasks) {
      locals_[local].blockers.push_back(task.num_waits);
      if (task.kind != MessageTask::Kind::kReceive) continue;
      ++ranks_[RankOf(local, task.peers[0].rank)].receives_left;
      if (task.is_lossy) ++locals_[local].lossy_left;
    }
  }
}

uint32_t MessageCall::RankOf(uint32_t local, uint32_t in_group) const {
  return site_->ranks().GroupOf(rank(local))[in_group];
}

MessageId MessageCall::Id(const MessageStep& step, const MessageTask::Peer& peer) const {
  const MessageTask& it = task(step);
  const uint32_t self = rank(step.local), other = RankOf(step.local, peer.rank);
  const bool sends = it.kind == MessageTask::Kind::kSend;
  // If the user makes a mistake, ranks may make different calls with the same id. The fingerprint in the index keeps
  // such ranks from receiving each other's messages, whose sizes may differ.
  const uint32_t index = peer.index ^ static_cast<uint32_t>(site_->fingerprint());
  return {id_, sends ? self : other, sends ? other : self, index, it.segment, site_->layout().payload()};
}

MessageSteps MessageCall::Arrive(uint32_t rank, Buffers buffers, Done&& done, Clock::time_point now) {
  MessageSteps steps;
  steps.completions.reserve(1);
  const uint32_t index = *site_->ranks().FindLocal(rank);
  std::lock_guard<std::mutex> lock(mutex_);
  Local& local = locals_[index];
  if (ranks_[rank].arrived) {
    Status twice(Code::kInternal, Describe() + ": rank " + std::to_string(rank) + " arrived twice");
    steps.completions.push_back({rank, std::move(done), std::move(twice)});
    return steps;
  }
  local.done_is_quick = buffers.done_is_quick;
  try {
    if (failure_.ok()) local.memory.emplace(*site_, graph(index), std::move(buffers));
  } catch (const std::bad_alloc&) {
    FailLocked(NoMemory{name(), site_->ranks().NameOf(rank), graph(index).scratch_bytes()}.status(), /*announce=*/true,
               steps);
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
  for (uint32_t task = 0; task < local.blockers.size(); ++task) {
    if (graph(index).tasks()[task].num_waits == 0) Begin(index, task, steps);
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
  if (site_->ranks().Concerns(rank) && !ranks_[rank].arrived) MarkArrived(rank, now, steps);
  if (!Accepts(arrival.fingerprint)) FailLocked(Differs(rank, arrival.text), /*announce=*/true, steps);
  for (uint32_t local = 0; local < locals_.size(); ++local) CheckEnd(local, steps);
  return steps;
}

void MessageCall::MarkArrived(uint32_t rank, Clock::time_point now, MessageSteps& steps) {
  ranks_[rank].arrived = true;
  if (!ranks_[rank].waits) ranks_[rank].at = now;  // if the rank waits, `at` is the time at which its wait began
  progress_ = std::max(progress_, now);
  --missing_;
  if (!failure_.ok()) return;
  running_ += ranks_[rank].unsent.size();
  for (MessageStep& step : ranks_[rank].unsent) steps.tasks.push_back(std::move(step));
  ranks_[rank].unsent.clear();
}

// Starts a task that waits for no other task. A send starts only for receivers that have arrived, or whose message may
// be sent before they arrive.
void MessageCall::Begin(uint32_t local, uint32_t task, MessageSteps& steps) {
  const MessageTask& it = graph(local).tasks()[task];
  MessageStep step{local, task, {}};
  if (it.kind == MessageTask::Kind::kSend) {
    locals_[local].blockers[task] = locals_[local].unfreed[task] = static_cast<uint32_t>(it.peers.size());
    for (uint32_t peer = 0; peer < it.peers.size(); ++peer) {
      Rank& receiver = ranks_[RankOf(local, it.peers[peer].rank)];
      if (receiver.arrived || (!it.is_lossy && (site_->leaves().is_small() || it.end - it.begin <= kEarlyBytes))) {
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
  if (std::exchange(locals_[local].unfreed[task], 0) > 0) BeginWaiting(local, task, steps);
  --locals_[local].tasks_left;
  CheckEnd(local, steps);
}

void MessageCall::BeginWaiting(uint32_t local, uint32_t task, MessageSteps& steps) {
  for (const uint32_t next : graph(local).tasks()[task].waiting) {
    if (--locals_[local].blockers[next] == 0) Begin(local, next, steps);
  }
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
    FailLocked(GoneError(from, status), /*announce=*/true, steps);
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
  if (it.is_lossy) {
    bytes.Lose(it, lost);
    const Clock::time_point arrived = ranks_[rank(step.local)].at;
    if (--locals_[step.local].lossy_left == 0) site_->loss_times().Add(Seconds(Clock::now() - arrived));
  }
  End(step.local, step.task, steps);
  return steps;
}

// The caller holds `lock`, which this function releases while it copies.
void MessageCall::CopyView(const MessageStep& step, std::shared_ptr<const std::byte> view,
                           std::unique_lock<std::mutex>& lock, MessageSteps& steps) {
  ++running_;
  lock.unlock();
  memory(step.local).Copy(task(step), view.get());
  view.reset();  // released before locking, because the release of a view runs code of the transport
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
    if (blockers == 0) continue;  // the addition has begun
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
    const Status one = GoneError(to, status);
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

MessageSteps MessageCall::Freed(const MessageStep& step) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  uint32_t& unfreed = locals_[step.local].unfreed[step.task];
  if (!failure_.ok() || unfreed == 0) return steps;
  unfreed -= static_cast<uint32_t>(step.peers.size());
  if (unfreed == 0) BeginWaiting(step.local, step.task, steps);
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
  return std::all_of(site_->ranks().locals().begin(), site_->ranks().locals().end(),
                     [this](const SiteRanks::Local& local) { return ranks_[local.rank].arrived; });
}

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
  failure_ = refused_.ok() ? std::move(why) : refused_;
  site_->stats().RecordFailure();
  site_->stats().KeepFailure(Failed());
  steps.failed = announce;
  for (Rank& rank : ranks_) rank.unsent.clear();
  StopRunning(0, steps);
}

Status MessageCall::GoneError(uint32_t rank, const Status& why) const {
  return RankGone{name(), site_->ranks().NameOf(rank), site_->ranks()[rank].process, site_->ranks().PlaceOf(rank),
                  why.message()}
      .status();
}

MessageSteps MessageCall::PeerGone(const GoneProcess& gone) {
  MessageSteps steps;
  std::lock_guard<std::mutex> lock(mutex_);
  if (locals_left_ == 0) {
    steps.over = true;
    return steps;
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (site_->ranks()[rank].process != gone.process || !site_->ranks().Concerns(rank)) continue;
    if (ranks_[rank].arrived) continue;
    const std::vector<uint32_t>& group = site_->ranks().GroupOf(rank);
    const auto culprit = std::find_if(group.begin(), group.end(), [&](uint32_t other) {
      return gone.cause && site_->ranks()[other].process == gone.cause->process;
    });
    FailLocked(culprit == group.end() ? GoneError(rank, gone.why) : GoneError(*culprit, gone.cause->why),
               /*announce=*/true, steps);
  }
  return steps;
}

std::vector<Completion> MessageCall::TakeWaiting() {
  std::vector<Completion> completions;
  // This list is destroyed after the lock is released, because the release of the memory's views runs code of the
  // transport.
  std::vector<std::optional<MessageMemory>> released;
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
  std::vector<uint32_t> unscheduled;  // ranks that wait for the schedule, although this process knows the schedule
  const bool decided = !selector || selector->Find(id_);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!site_->ranks().Concerns(rank)) continue;
    const bool is_here = ranks_[rank].arrived || (ranks_[rank].waits && !decided);
    (is_here ? delay.waiting : ranks_[rank].waits ? unscheduled : delay.missing).push_back(rank);
    if (missing_ == 0 && ranks_[rank].receives_left > 0) delay.silent.push_back(rank);
  }
  if (missing_ == 0 && delay.silent.empty()) delay.unaccepting = FindUnaccepting();
  delay.lacks_decision = !decided && delay.missing.empty();
  if (delay.lacks_decision) delay.missing = {selector->decider()};
  delay.lack_schedule = delay.missing.empty() && !unscheduled.empty();
  std::vector<uint32_t>& also = delay.lack_schedule ? delay.missing : delay.waiting;
  also.insert(also.end(), unscheduled.begin(), unscheduled.end());
  std::sort(also.begin(), also.end());
  return delay;
}

// Returns the receivers of sends that have not ended.
std::vector<uint32_t> MessageCall::FindUnaccepting() const {
  std::set<uint32_t> found;
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    const std::vector<MessageTask>& tasks = graph(local).tasks();
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (tasks[task].kind != MessageTask::Kind::kSend || locals_[local].blockers[task] == 0) continue;
      for (const MessageTask::Peer& peer : tasks[task].peers) found.insert(RankOf(local, peer.rank));
    }
  }
  return {found.begin(), found.end()};
}

Status MessageCall::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

// Records the times of the ranks in this process's groups. Other groups' times are not known here.
void MessageCall::Record() {
  if (std::exchange(recorded_, true)) return;
  const std::vector<uint32_t>& own = site_->ranks().GroupOf(rank(0));
  const size_t count = site_->is_regrouped() ? ranks_.size() : own.size();
  CallRecord record;
  record.arrivals.resize(count, CallRecord::kUnknown);
  if (site_->is_regrouped()) record.waits.resize(count);
  Clock::time_point first = ranks_[own[0]].at;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (site_->ranks().Concerns(rank)) first = std::min(first, ranks_[rank].at);
  }
  for (const std::vector<uint32_t>& group : site_->ranks().groups()) {
    if (!site_->ranks().Concerns(group[0]) || (!site_->is_regrouped() && &group != &own)) continue;
    const auto earlier = [this](uint32_t one, uint32_t other) { return ranks_[one].at < ranks_[other].at; };
    const auto last = std::max_element(group.begin(), group.end(), earlier);
    for (uint32_t i = 0; i < group.size(); ++i) {
      const uint32_t at = site_->is_regrouped() ? group[i] : i;
      record.arrivals[at] = Seconds(ranks_[group[i]].at - first);
      if (site_->is_regrouped()) record.waits[at] = Seconds(ranks_[*last].at - ranks_[group[i]].at);
      if (group[i] == *last && group.size() > 1) record.last.push_back(at);
      const std::optional<uint32_t> local = site_->ranks().FindLocal(group[i]);
      if (!local || locals_[*local].done) continue;
      record.after_arrival = std::max(record.after_arrival, Seconds(locals_[*local].ended - ranks_[*last].at));
    }
  }
  record.call = {HashOf(id_), number_, first};
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

FailedCall MessageCall::Failed() const {
  FailedCall call{{HashOf(id_), number_, start_}, {}, {}, failure_.message(), Clock::now()};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!site_->is_regrouped() && site_->ranks()[rank].group != site_->ranks()[this->rank(0)].group) continue;
    // If the call fails early, the rank with which the call began, first_, is not marked as arrived yet.
    const Clock::time_point at = rank == first_ ? start_ : ranks_[rank].at;
    const bool is_here = rank == first_ || ranks_[rank].arrived || ranks_[rank].waits;
    call.arrivals.push_back(is_here ? Seconds(at - start_) : CallRecord::kUnknown);
    call.processes.push_back(site_->ranks()[rank].process);
  }
  return call;
}

// Returns, for each rank of this process, the seconds from the end of its previous call to its arrival at this call;
// kUnknown for other ranks. Returns an empty list if a rank of this process has had no previous call.
std::vector<double> MessageCall::Own() const {
  std::vector<double> own(ranks_.size(), CallRecord::kUnknown);
  for (uint32_t local = 0; local < locals_.size(); ++local) {
    if (locals_[local].own < 0) return {};
    own[rank(local)] = locals_[local].own;
  }
  return own;
}

}  // namespace jaxcomm

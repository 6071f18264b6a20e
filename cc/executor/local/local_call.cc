#include "cc/executor/local/local_call.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "cc/base/error_texts.h"
#include "cc/base/float_mode.h"
#include "cc/base/text.h"

namespace jaxcomm {
namespace {

// The size of an op's slices. They are so large that the processor's prefetchers follow every buffer, and so small that
// several threads can share an op.
constexpr int64_t kPieceBytes = 1 << 20;

}  // namespace

LocalCall::LocalCall(std::shared_ptr<const LocalSite> site, Names names, int64_t number, Clock::time_point start)
    : site_(std::move(site)),
      names_(std::move(names)),
      number_(number),
      start_(start),
      ranks_(site_->program().ranks()) {
  if (ScheduleSelector* const selector = site_->selector()) {
    if (const std::optional<uint32_t> schedule = selector->Next()) Select(*schedule);
  } else {
    Select(ScheduleSelector::kDefault);
  }
}

void LocalCall::Select(uint32_t schedule) {
  std::shared_ptr<const LocalSite> selected = site_->With(schedule);
  const Program& program = selected->program();
  std::vector<uint32_t> blockers, slices_left(program.ops().size());
  blockers.reserve(program.ops().size());
  for (const Op& op : program.ops()) blockers.push_back(static_cast<uint32_t>(op.touches.size()) + op.num_waits);
  ops_left_ = static_cast<uint32_t>(program.ops().size());
  blockers_ = std::move(blockers);
  slices_left_ = std::move(slices_left);
  selected_ = std::move(selected);  // set after the allocations, because a call with selected_ counts as begun
  for (uint32_t rank = 0; rank < program.ranks(); ++rank) {
    ranks_[rank].ops_left = static_cast<uint32_t>(program.ops_of(rank).size());
  }
}

Progress LocalCall::Arrive(uint32_t rank, Buffers buffers, Done done, Clock::time_point now) {
  Progress progress;
  std::lock_guard<std::mutex> lock(mutex_);
  Rank& me = ranks_[rank];
  if (me.arrived) {
    progress.completions.push_back(
        {rank, std::move(done),
         Status(Code::kInternal, name().Text() + ": rank " + std::to_string(rank) + " arrived twice")});
    return progress;
  }
  me.arrived = true;
  me.at = now;
  me.buffers = std::move(buffers);
  me.done = std::move(done);
  if (++arrived_ == ranks_.size()) everyone_arrived_.store(true, std::memory_order_release);
  if (!failure_.ok()) {
    progress.completions.push_back({rank, std::exchange(me.done, nullptr), failure_});
    return progress;
  }
  if (selected_) {
    Begin(rank, progress);
  } else if (everyone_arrived() || site_->selector()->grace() == Clock::duration::zero()) {
    SelectMissing(progress);
  } else {
    progress.is_undecided = arrived_ + 1 == ranks_.size();
  }
  if (ops_left_ == 0 && selected_ && everyone_arrived()) Close(now);
  return progress;
}

Progress LocalCall::SelectMissing() {
  Progress progress;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!selected_ && failure_.ok()) SelectMissing(progress);
  return progress;
}

void LocalCall::SelectMissing(Progress& progress) {
  std::vector<bool> here;
  for (const Rank& rank : ranks_) here.push_back(rank.arrived);
  const std::optional<uint32_t> schedule = ScheduleSelector::FindMissing(here);
  if (!schedule) return;
  Select(*schedule);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (here[rank]) Begin(rank, progress);
  }
}

// Splits the ops that waited only for this rank into slices.
void LocalCall::Begin(uint32_t rank, Progress& progress) {
  for (const uint32_t op : selected_->program().ops_of(rank)) {
    if (--blockers_[op] == 0) Split(op, progress.slices);
  }
  // A rank that no op touches, as in a group of one, is done on arrival.
  if (ranks_[rank].ops_left == 0) {
    progress.completions.push_back({rank, std::exchange(ranks_[rank].done, nullptr), Status()});
  }
}

void LocalCall::Split(uint32_t op, std::vector<OpSlice>& slices) {
  const Op& it = selected_->program().ops()[op];
  int64_t begin = selected_->Begin(it);
  const int64_t end = selected_->End(it);
  do {  // an empty op gets one empty slice, so that the op finishes like any other op
    const int64_t next = std::min(begin + kPieceBytes, end);
    slices.push_back({op, begin, next});
    ++slices_left_[op];
    begin = next;
  } while (begin < end);
}

Progress LocalCall::Run(const OpSlice& slice) {
  Progress progress;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return progress;
    ++running_;
    if (!everyone_arrived()) {
      const Op& op = selected_->program().ops()[slice.op];
      early_work_ += (slice.end - slice.begin) * static_cast<int64_t>(op.reads.size() + op.writes.size());
    }
  }
  Reduce(slice);
  std::lock_guard<std::mutex> lock(mutex_);
  --running_;
  if (!failure_.ok()) {
    if (running_ == 0) progress.completions = TakeWaiting();
    return progress;
  }
  if (--slices_left_[slice.op] == 0) FinishOp(slice.op, progress);
  return progress;
}

void LocalCall::FinishOp(uint32_t op, Progress& progress) {
  const Op& it = selected_->program().ops()[op];
  for (const uint32_t next : it.successors) {
    if (--blockers_[next] == 0) Split(next, progress.slices);
  }
  for (const uint32_t rank : it.touches) {
    if (--ranks_[rank].ops_left == 0) {
      progress.completions.push_back({rank, std::exchange(ranks_[rank].done, nullptr), Status()});
    }
  }
  if (--ops_left_ == 0 && everyone_arrived()) Close(Clock::now());
}

// For each part of a leaf, collects pointers into the ranks' buffers, then reduces the part in one pass.
void LocalCall::Reduce(const OpSlice& slice) const {
  const Op& op = selected_->program().ops()[slice.op];
  const Layout& layout = site_->layout();
  const Kind kind = site_->kind();
  const XlaFloatMode mode;  // so that a sum's bits do not depend on the thread
  thread_local std::vector<const std::byte*> sources;
  thread_local std::vector<std::byte*> destinations;
  sources.resize(op.reads.size());
  destinations.resize(op.writes.size());
  // Stores to destinations that are also sources go through the caches, which already hold their bytes. Only
  // all-reduces have such destinations.
  const size_t in_place = kind == Kind::kAllReduce ? op.num_in_place : 0;
  const size_t num_cached = site_->streams() ? in_place : op.writes.size();
  // A single source is copied as bytes, because copying floats would turn signalling NaNs into quiet NaNs.
  static const ReduceFn copy = FindReduce(DType::kU8, Reduction::kSum);
  layout.ForEach(slice.begin, slice.end, [&](size_t leaf, int64_t offset, int64_t bytes) {
    const int64_t slice = op.chunk * layout.leaves()[leaf].bytes;
    const int64_t read_at = offset + (kind == Kind::kReduceScatter ? slice : 0);
    const int64_t write_at = offset + (kind == Kind::kAllGather ? slice : 0);
    for (size_t i = 0; i < op.reads.size(); ++i) sources[i] = ranks_[op.reads[i]].buffers.operands[leaf] + read_at;
    for (size_t i = 0; i < op.writes.size(); ++i) {
      destinations[i] = ranks_[op.writes[i]].buffers.results[leaf] + write_at;
    }
    const ReduceFn reduce = op.reads.size() == 1 ? copy : site_->reduces()[leaf];
    reduce(sources.data(), sources.size(), destinations.data(), destinations.size(), num_cached,
           static_cast<size_t>(bytes));
  });
}

void LocalCall::Close(Clock::time_point now) {
  CallRecord record;
  Clock::time_point first = ranks_[0].at, last = ranks_[0].at;
  for (const Rank& rank : ranks_) {
    first = std::min(first, rank.at);
    last = std::max(last, rank.at);
  }
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    record.arrivals.push_back(Seconds(ranks_[rank].at - first));
    if (record.last.empty() && ranks_[rank].at == last) record.last.push_back(rank);
  }
  record.call = {0, number_, first};
  record.is_early = site_->selector() && selected_->schedule() == ScheduleSelector::kDefault;
  record.after_arrival = Seconds(now - last);
  if (ScheduleSelector* const selector = site_->selector()) {
    selector->RecordCall(
        static_cast<uint32_t>(ranks_.size()), [this](uint32_t rank) { return ranks_[rank].at; }, selected_->schedule(),
        record.after_arrival);
  }
  record.early_share =
      selected_->work() ? static_cast<double>(early_work_) / static_cast<double>(selected_->work()) : 0;
  site_->stats().Record(std::move(record));
}

Progress LocalCall::Expire(Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok() || (everyone_arrived() && selected_)) return {};
  std::vector<uint32_t> here, missing;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) (ranks_[rank].arrived ? here : missing).push_back(rank);
  std::string everybody = std::to_string(ranks_.size());
  if (names_) {
    std::vector<uint32_t> all(ranks_.size());
    std::iota(all.begin(), all.end(), 0);
    everybody = "the group " + JoinRanks(Named(all));
  }
  return End(DeadlineExceeded{name(), Named(missing), Named(here), std::move(everybody), now - start_}.status());
}

Progress LocalCall::Fail(Status why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok() || (everyone_arrived() && selected_)) return {};
  return End(std::move(why));
}

Progress LocalCall::End(Status why) {
  failure_ = std::move(why);
  site_->stats().RecordFailure();
  FailedCall call{{0, number_, start_}, {}, {}, failure_.message(), Clock::now()};
  for (const Rank& rank : ranks_) {
    call.arrivals.push_back(rank.arrived ? Seconds(rank.at - start_) : CallRecord::kUnknown);
  }
  site_->stats().KeepFailure(std::move(call));
  Progress progress;
  if (running_ == 0) progress.completions = TakeWaiting();
  return progress;
}

std::vector<uint32_t> LocalCall::Named(std::vector<uint32_t> ranks) const {
  if (names_) std::transform(ranks.begin(), ranks.end(), ranks.begin(), [&](uint32_t rank) { return (*names_)[rank]; });
  return ranks;
}

std::vector<Completion> LocalCall::TakeWaiting() {
  std::vector<Completion> completions;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].done) continue;
    completions.push_back({rank, std::exchange(ranks_[rank].done, nullptr), failure_});
  }
  return completions;
}

bool LocalCall::failed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !failure_.ok();
}

CallName LocalCall::name() const {
  return {site_->name(), site_->axes(), site_->plan(), site_->layout().payload(), number_};
}

}  // namespace jaxcomm

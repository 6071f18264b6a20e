#include "cc/executor/sites/message_site.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/executor/sites/message_calls.h"
#include "cc/program/message_lists.h"
#include "cc/transport/transport.h"

namespace jaxcomm {
namespace {

// In a sum of two ranks, the ranks read each other's operands in place if an operand has at most this size. Larger
// operands are sent in messages, because several workers add messages faster than one thread adds an operand.
constexpr int64_t kMostReadSum = int64_t{1} << 20;

// In an exchange, each rank adds all elements of all operands. If an all-reduce's list divides the additions among the
// ranks, the ranks exchange their operands only if these together have at most this size.
constexpr int64_t kMostAdded = int64_t{1} << 20;

// A time limit that follows the median exceeds the median by this factor, so that only the slowest calls lose bytes.
constexpr double kTimeLimitOverMedian = 1.25;

}  // namespace

Result<std::shared_ptr<MessageSite>> MessageSite::Make(Label label, Collective collective, uint64_t communicator,
                                                       uint32_t site, const std::vector<MessageGroup>& groups,
                                                       uint32_t process) {
  Result<SiteRanks> ranks = SiteRanks::Make(groups, process, collective.kind != Kind::kAllToAll);
  if (!ranks.ok()) {
    return InvalidArgument(label.name + " over '" + label.axes + "': " + ranks.status().message());
  }
  return std::shared_ptr<MessageSite>(
      new MessageSite(std::move(label), std::move(collective), communicator, site, std::move(ranks.value())));
}

MessageSite::MessageSite(Label label, Collective collective, uint64_t communicator, uint32_t site, SiteRanks ranks)
    : label_(std::move(label)),
      collective_(std::move(collective)),
      communicator_(communicator),
      site_(site),
      ranks_(std::move(ranks)),
      followed_(label_.plan == kAuto && collective_.kind == Kind::kAllReduce ? std::make_shared<Followed>() : nullptr) {
}

Result<std::shared_ptr<MessageSite>> MessageSite::In(const std::vector<SiteRanks::Members>& groups,
                                                     bool change_from_call_to_call) const {
  Result<SiteRanks> ranks = ranks_.Regroup(groups, change_from_call_to_call);
  if (!ranks.ok()) return InvalidArgument(NameCall().Text() + ": " + ranks.status().message());
  std::shared_ptr<MessageSite> made(new MessageSite(*this));
  made->ranks_ = std::move(ranks.value());
  made->graphs_ = std::make_shared<SiteGraphs>(graphs_->cache());
  made->exchanging_ = Exchanging();
  return made;
}

Result<std::shared_ptr<const MessageSite>> MessageSite::Regroup(const std::vector<SiteRanks::Members>& groups,
                                                                std::string row) const {
  const Result<std::shared_ptr<MessageSite>> made = In(groups, /*change_from_call_to_call=*/true);
  if (!made.ok()) return made.status();
  MessageSite& site = *made.value();
  site.row_ = std::move(row);
  site.followed_ = nullptr;  // plans are only for groups that do not change
  if (Status status = site.MakeGraphs(); !status.ok()) return status;
  site.text_ = DescribeSite(site);
  return std::shared_ptr<const MessageSite>(made.value());
}

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
  return fingerprint == text_.fingerprint || std::any_of(selected_.begin(), selected_.end(), is);
}

std::shared_ptr<const MessageSite> MessageSite::With(uint32_t schedule) const {
  if (schedule == ScheduleSelector::kDefault || schedule > selected_.size()) return shared_from_this();
  return selected_[schedule - 1];
}

Result<std::shared_ptr<const MessageSite>> MessageSite::Following(
    const std::shared_ptr<const PlannedLists>& plan) const {
  const auto is_another_size = [&](const auto& group) { return group.size() != plan->ranks; };
  const std::vector<std::vector<uint32_t>>& groups = ranks_.groups();
  if (!plan || std::all_of(groups.begin(), groups.end(), is_another_size)) return shared_from_this();
  std::lock_guard<std::mutex> lock(followed_->mutex);
  if (plan == followed_->plan) return followed_->site;
  std::vector<SiteRanks::Members> members;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    SiteRanks::Members& made = members.emplace_back(SiteRanks::Members{groups[group], ranks_.list(group), {}});
    if (const PlannedLists::Range* const planned = plan->Find(groups[group].size(), layout().payload())) {
      made.list = planned->name, made.lists = planned->lists;
      continue;
    }
    for (const uint32_t rank : groups[group]) {
      const std::optional<uint32_t> local = ranks_.FindLocal(rank);
      made.lists.push_back(local ? ranks_.locals()[*local].list : nullptr);
    }
  }
  const Result<std::shared_ptr<MessageSite>> made = In(members, /*change_from_call_to_call=*/false);
  if (!made.ok()) return made.status();
  MessageSite& site = *made.value();
  site.followed_ = nullptr;
  site.label_.plan = plan->plan;
  site.text_ = DescribeSite(site);
  site.FindExchanging();
  site.CountCalls();
  followed_->plan = plan;
  followed_->site = made.value();
  return followed_->site;
}

Status MessageSite::TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const {
  if (!collective_.loss) return Status();
  int64_t segments = 0;
  for (size_t i = 1; i < leaves.size(); ++i) segments += collective_.loss->SegmentsOf(leaves[i]);
  return TakeFirst({DType::kU8, segments}, label_.name + ": the importance mask is missing", leaves, buffers);
}

std::optional<LossLimit::TimePoint> MessageSite::LossesFrom(Clock::time_point now) const {
  if (!collective_.loss || !collective_.loss->time_limit_s) return std::nullopt;
  double seconds = *collective_.loss->time_limit_s;
  if (seconds == 0) {
    const std::optional<double> usual = loss_times().Median();
    if (!usual) return LossLimit::TimePoint::max();
    seconds = kTimeLimitOverMedian * *usual;
  }
  return now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void MessageSite::Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) {
  executors.messages().Arrive(shared_from_this(), run, rank, std::move(buffers), std::move(done));
}

void MessageSite::Refuse(Executors& executors, int64_t run, uint32_t rank, const Status& why) const {
  executors.messages().Refuse(*this, run, rank, why);
}

void MessageSite::Forget(Executors& executors) const {
  executors.messages().Forget(this);
  for (const auto& other : selected_) executors.messages().Forget(other.get());
}

Status MessageSite::SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  std::call_once(shared_->once, [&] {
    for (const auto& other : selected_) {
      shared_->status = other->Fix(leaves, stats);
      if (!shared_->status.ok()) return;
    }
    shared_->status = Fix(leaves, stats);
    if (shared_->status.ok()) shared_->status = MakeGraphs();
    // Makes the graphs of the schedule for the fixed late rank now, because nearly every call needs this schedule.
    const bool has_late_rank = !selected_.empty() && selector_->has_late_rank() && !selector_->by_turns();
    if (shared_->status.ok() && has_late_rank) shared_->status = selected_[selector_->first() - 1]->MakeGraphs();
    if (shared_->status.ok() && selector_) selector_->Try({stats_, &stats_->trial()});
  });
  return shared_->status;
}

Status MessageSite::Fix(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  Result<SiteLeaves> made = SiteLeaves::Make(NameCall(), collective_, ranks_, leaves);
  if (!made.ok()) return made.status();
  shared_->leaves.emplace(std::move(made.value()));
  shared_->stats = &stats;
  shared_->scratch = std::make_unique<ScratchPool>(2 * ranks_.locals().size());
  text_ = DescribeSite(*this);
  FindExchanging();
  CountCalls();
  return Status();
}

void MessageSite::CountCalls() {
  const auto ranks = static_cast<uint32_t>(ranks_.GroupOf(ranks_.locals()[0].rank).size());
  stats_ = shared_->stats->Site({label_.name, label_.axes, label_.plan, ranks, layout().payload()});
}

// Finds whether and how ranks exchange operands. An exchange adds in rank order. Ranks exchange the operands of a sum
// only if the sum's list of messages adds in rank order, too, so that exchanges and messages give the same bits.
void MessageSite::FindExchanging() {
  exchanging_ = Exchanging();
  const SiteRanks::Local& local = ranks_.locals()[0];
  const bool is_all_to_all = collective_.kind == Kind::kAllToAll;
  const bool is_simple = (local.list || is_all_to_all) && !collective_.loss && !selector_ && layout().payload() > 0;
  if (!is_simple || ranks_.IsBetweenHosts(local.rank)) return;
  Exchanging found;
  for (const uint32_t rank : ranks_.GroupOf(local.rank)) found.processes.push_back(ranks_[rank].process);
  for (const uint32_t process : found.processes) {
    const auto is_of = [process](const SiteRanks::Rank& rank) { return rank.process == process; };
    if (std::count_if(ranks_.begin(), ranks_.end(), is_of) > 1) return;
  }
  const std::string& list = ranks_.list(ranks_[local.rank].group);
  const bool is_gather = collective_.kind == Kind::kAllGather;
  const bool is_one = layout().leaves().size() == 1, is_pair = found.processes.size() == 2;
  const int64_t slices = collective_.kind == Kind::kReduceScatter ? static_cast<int64_t>(found.processes.size()) : 1;
  const int64_t bytes = slices * layout().extent();
  found.is_transfer = IsBroadcast(list) && is_pair && is_one;
  if (is_all_to_all) found.reads = ReadPattern::kSpanPerReader;
  found.in_place = is_gather || is_all_to_all || bytes > Transport::kMaxExchanged;
  const auto may_exchange = [&] {
    if (is_all_to_all || found.is_transfer) return true;
    if (is_gather) return is_one;
    if (found.in_place) return AddsInRankOrder(list) && is_pair && is_one && bytes <= kMostReadSum;
    if (collective_.kind == Kind::kReduceScatter) return AddsInRankOrder(list);
    const auto ranks = static_cast<int64_t>(found.processes.size());
    return local.list->IsFlatSum() || (AddsInRankOrder(list) && ranks * bytes <= kMostAdded);
  };
  if (may_exchange()) exchanging_ = std::move(found);
}

Status MessageSite::MakeGraphs() const {
  const Status made = graphs_->Make(collective_, ranks_, layout());
  return made.ok() ? made : InvalidArgument(NameCall().Text() + ": " + made.message());
}

Status MessageSite::Differs(const CallName& call, uint32_t rank, const std::string& text, uint32_t mine) const {
  const uint32_t their_name = ranks_.NameOf(rank), my_name = ranks_.NameOf(mine);
  const size_t alike = text_.text.size() - row_.size();
  if (is_regrouped() && text.compare(0, alike, text_.text, 0, alike) == 0) {
    return Mismatch{call, their_name, text.substr(alike), my_name, row_}.status();
  }
  return DifferentCalls{call, {their_name, ranks_.PlaceOf(rank), text}, {my_name, ranks_.PlaceOf(mine), text_.text}}
      .status();
}

void MessageSite::Leave(uint32_t rank, Clock::time_point now) const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->left[rank] = now;
}

double MessageSite::SecondsSinceLeft(uint32_t rank, Clock::time_point now) const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  const auto left = shared_->left.find(rank);
  return left == shared_->left.end() ? -1 : std::chrono::duration<double>(now - left->second).count();
}

}  // namespace jaxcomm

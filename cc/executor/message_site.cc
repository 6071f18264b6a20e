#include "cc/executor/message_site.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cc/base/error_texts.h"
#include "cc/base/hash.h"
#include "cc/base/text.h"
#include "cc/executor/executor.h"

namespace jaxcomm {
namespace {

// Up to this size of a call, handing a sum to another thread takes longer than adding.
constexpr int64_t kSmallBytes = 1 << 20;

// Bytes of the buffers of a host's ranks together from which on stores go past the caches: with what the transport
// holds of them as much as one last-level cache has on most processors.
constexpr int64_t kStreamBytes = 16 << 20;

void MakeSet(std::vector<uint32_t>& processes) {
  std::sort(processes.begin(), processes.end());
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
}

}  // namespace

uint64_t CommunicatorOf(const std::vector<MessageGroup>& groups) {
  std::string devices;
  for (const MessageGroup& group : groups) {
    for (const MessageGroup::Rank& rank : group.ranks) {
      devices += std::to_string(rank.process) + ":" + std::to_string(rank.device) + ",";
    }
    devices += "|";
  }
  return Hash(devices);
}

Result<std::shared_ptr<MessageSite>> MessageSite::Make(Label label, Kind kind, Reduction reduction,
                                                       uint64_t communicator, uint32_t site,
                                                       const std::vector<MessageGroup>& groups, uint32_t process,
                                                       std::optional<AllowedLoss> loss) {
  std::shared_ptr<MessageSite> made(new MessageSite());
  made->loss_ = std::move(loss);
  made->common_ = std::make_shared<Common>();
  made->label_ = std::move(label);
  made->kind_ = kind;
  made->reduction_ = reduction;
  made->communicator_ = communicator;
  made->site_ = site;
  made->process_ = process;
  std::vector<Members> members;
  for (const MessageGroup& group : groups) {
    Members& numbered = members.emplace_back(Members{{}, group.list, group.lists});
    for (const MessageGroup::Rank& rank : group.ranks) {
      numbered.ranks.push_back(static_cast<uint32_t>(made->ranks_.size()));
      made->ranks_.push_back({rank.process, rank.device, rank.host, 0, rank.host_name});
      if (rank.process != process) made->everybody_.push_back(rank.process);
    }
  }
  MakeSet(made->everybody_);
  if (Status status = made->SetGroups(members); !status.ok()) return status;
  if (made->locals_.empty()) {
    return InvalidArgument(made->who() + "process " + std::to_string(process) + " has no rank in any group");
  }
  return made;
}

Result<std::shared_ptr<const MessageSite>> MessageSite::Regroup(const std::vector<Members>& groups,
                                                                std::string row) const {
  std::shared_ptr<MessageSite> made(new MessageSite(*this));
  made->row_ = std::move(row);
  made->exchanging_.clear();
  if (Status status = made->SetGroups(groups); !status.ok()) return status;
  if (Status status = made->MakeGraphs(); !status.ok()) return status;
  made->Describe();
  return std::shared_ptr<const MessageSite>(std::move(made));
}

Status MessageSite::SetGroups(const std::vector<Members>& groups) {
  groups_.clear();
  locals_.clear();
  concerned_.clear();
  others_.clear();
  lists_.clear();
  between_hosts_.clear();
  graphs_ = std::make_shared<Graphs>();
  for (const Members& group : groups) {
    std::vector<uint32_t> others;
    for (const uint32_t rank : group.ranks) {
      ranks_[rank].group = static_cast<uint32_t>(groups_.size());
      if (ranks_[rank].process != process_) others.push_back(ranks_[rank].process);
    }
    MakeSet(others);
    concerned_.push_back(false);
    for (uint32_t i = 0; i < group.ranks.size(); ++i) {
      if (ranks_[group.ranks[i]].process != process_) continue;
      concerned_.back() = true;
      const std::shared_ptr<const Messages> list = i < group.lists.size() ? group.lists[i] : nullptr;
      const bool fits = list ? list->rank() == i && list->ranks() == group.ranks.size() : group.ranks.size() == 1;
      if (!fits) {
        return InvalidArgument(who() + "'" + group.list + "' is no list of messages for rank " + std::to_string(i) +
                               " of " + std::to_string(group.ranks.size()));
      }
      locals_.push_back({group.ranks[i], list, others});
    }
    if (concerned_.back()) others_.insert(others_.end(), others.begin(), others.end());
    groups_.push_back(group.ranks);
    lists_.push_back(group.list);
    between_hosts_.push_back(std::any_of(group.ranks.begin(), group.ranks.end(), [&](uint32_t rank) {
      return ranks_[rank].host != ranks_[group.ranks[0]].host;
    }));
  }
  MakeSet(others_);
  std::sort(locals_.begin(), locals_.end(), [](const Local& one, const Local& other) { return one.rank < other.rank; });
  return Status();
}

Status MessageSite::TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const {
  if (!loss_) return Status();
  int64_t segments = 0;
  for (size_t i = 1; i < leaves.size(); ++i) segments += SegmentsOf(leaves[i]);
  return TakeFirst({DType::kU8, segments}, label_.name + ": the importance mask is missing", leaves, buffers);
}

void MessageSite::Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) {
  executor.messages().Arrive(shared_from_this(), run, rank, std::move(buffers), std::move(done));
}

void MessageSite::Refuse(Executor& executor, int64_t run, uint32_t rank, const Status& why) const {
  executor.messages().Refuse(*this, run, rank, why);
}

void MessageSite::Forget(Executor& executor) const {
  executor.messages().Forget(this);
  for (const auto& other : selected_) executor.messages().Forget(other.get());
}

Status MessageSite::SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  std::call_once(common_->once, [&] {
    for (const auto& other : selected_) {
      common_->status = other->Fix(leaves, stats);
      if (!common_->status.ok()) return;
    }
    common_->status = Fix(leaves, stats);
    if (common_->status.ok()) common_->status = MakeGraphs();
    // Nearly every call of a site with a known late rank needs it.
    const bool has_late_rank = !selected_.empty() && selector_->has_late_rank() && !selector_->by_turns();
    if (common_->status.ok() && has_late_rank) common_->status = selected_[selector_->first() - 1]->MakeGraphs();
    if (common_->status.ok() && selector_) selector_->Try(stats_);
  });
  return common_->status;
}

Status MessageSite::Fix(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  Status status = FindReduces(label_.name, kind_, reduction_, leaves, common_->reduces);
  if (status.ok()) status = CheckLoss(leaves);
  if (!status.ok()) return status;
  common_->layout.emplace(leaves);
  const uint32_t host = ranks_[locals_[0].rank].host;
  const auto here = std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.host == host; });
  common_->streams = layout().extent() * Slices() * here >= kStreamBytes;
  int64_t segments = 0;
  for (const Leaf& leaf : loss_ ? leaves : std::vector<Leaf>()) {
    common_->first_segments.push_back(segments);
    segments += SegmentsOf(leaf);
  }
  Describe();
  FindExchanging();
  common_->stats = &stats;
  CountCalls();
  common_->scratch = std::make_unique<ScratchPool>(2 * locals_.size());
  return Status();
}

void MessageSite::CountCalls() {
  const auto ranks = static_cast<uint32_t>(GroupOf(locals_[0].rank).size());
  stats_ = common_->stats->Site({label_.name, label_.axes, label_.plan, ranks, layout().payload()});
}

// Where memory runs out, the next call of this tries again.
Status MessageSite::MakeGraphs() const {
  std::call_once(graphs_->once, [this] {
    std::vector<std::shared_ptr<const MessageGraph>> made;
    for (const Local& local : locals_) {
      const auto graph = MakeGraph(local);
      if (!graph.ok()) graphs_->status = InvalidArgument(who() + graph.status().message());
      if (!graph.ok()) break;
      made.push_back(graph.value());
    }
    graphs_->by_local = std::move(made);
    graphs_->are_made = true;
  });
  return graphs_->status;
}

// Without the mutex, which threads need that end calls.
Result<std::shared_ptr<const MessageGraph>> MessageSite::MakeGraph(const Local& local) const {
  if (!local.list) return std::make_shared<const MessageGraph>();
  const uint32_t group = ranks_[local.rank].group;
  const std::tuple<std::string, uint32_t, bool> key(lists_[group], local.list->rank(), between_hosts_[group]);
  auto& graphs = common_->graphs;
  {
    std::lock_guard<std::mutex> lock(common_->mutex);
    // Drops those of plans that no call follows any more.
    for (auto at = graphs.begin(); at != graphs.end();) at = at->second.expired() ? graphs.erase(at) : std::next(at);
    if (const auto at = graphs.find(key); at != graphs.end()) {
      if (auto kept = at->second.lock()) return std::shared_ptr<const MessageGraph>(std::move(kept));
    }
  }
  Result<MessageGraph> graph =
      MessageGraph::Make(*local.list, layout(), kind_, loss_.has_value(), between_hosts_[group], is_in_place_);
  if (!graph.ok()) return graph.status();
  const auto made = std::make_shared<const MessageGraph>(std::move(graph.value()));
  std::lock_guard<std::mutex> lock(common_->mutex);
  graphs[key] = made;
  return made;
}

Status MessageSite::CheckLoss(const std::vector<Leaf>& leaves) const {
  if (!loss_) return Status();
  const auto invalid = [this](const std::string& what) { return InvalidArgument(who() + "a loss " + what); };
  if (kind_ != Kind::kAllReduce || reduction_ != Reduction::kSum) return invalid("of what is no sum");
  if (loss_->shares.size() != leaves.size()) return invalid("of " + std::to_string(loss_->shares.size()) + " arrays");
  if (loss_->segment_bytes < AllowedLoss::kMinSegmentBytes || loss_->segment_bytes % 8 != 0) {
    return invalid("of segments of " + std::to_string(loss_->segment_bytes) + " bytes; they have " +
                   std::to_string(AllowedLoss::kMinSegmentBytes) + " or more, a multiple of 8");
  }
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (!(loss_->shares[leaf] >= 0 && loss_->shares[leaf] < 1)) return invalid("of an array and more");
    if (FindScale(leaves[leaf].dtype) == nullptr) return invalid("of numbers that are no floats");
  }
  return Status();
}

int64_t MessageSite::Slices() const {
  return kind_ == Kind::kAllReduce ? 1 : static_cast<int64_t>(GroupOf(locals_[0].rank).size());
}

bool MessageSite::is_small() const { return layout().extent() <= kSmallBytes / Slices(); }

void MessageSite::Leave(uint32_t rank, Clock::time_point now) const {
  std::lock_guard<std::mutex> lock(common_->mutex);
  common_->left[rank] = now;
}

double MessageSite::SecondsSinceLeft(uint32_t rank, Clock::time_point now) const {
  std::lock_guard<std::mutex> lock(common_->mutex);
  const auto left = common_->left.find(rank);
  return left == common_->left.end() ? -1 : std::chrono::duration<double>(now - left->second).count();
}

std::optional<uint32_t> MessageSite::FindLocal(uint32_t rank) const {
  const auto at = std::lower_bound(locals_.begin(), locals_.end(), rank,
                                   [](const Local& local, uint32_t sought) { return local.rank < sought; });
  if (at == locals_.end() || at->rank != rank) return std::nullopt;
  return static_cast<uint32_t>(std::distance(locals_.begin(), at));
}

}  // namespace jaxcomm

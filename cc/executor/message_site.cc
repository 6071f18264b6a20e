#include "cc/executor/message_site.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cc/base/text.h"

namespace jaxcomm {
namespace {

constexpr const char* kDTypes[] = {"s8",  "s16", "s32",  "s64", "u8",  "u16", "u32",
                                   "u64", "f16", "bf16", "f32", "f64", "c64", "c128"};

// How many arrays are named where a call is described.
constexpr size_t kNamedLeaves = 4;

// FNV-1a: told apart are programs that differ by mistake, not by intent.
uint64_t Hash(const std::string& bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  return hash;
}

}  // namespace

Result<std::shared_ptr<MessageSite>> MessageSite::Make(Label label, Kind kind, Reduction reduction, uint64_t module,
                                                       uint32_t site, const std::vector<MessageGroup>& groups,
                                                       uint32_t process) {
  std::shared_ptr<MessageSite> made(new MessageSite());
  made->label_ = std::move(label);
  made->kind_ = kind;
  made->reduction_ = reduction;
  made->module_ = module;
  made->site_ = site;
  made->process_ = process;
  const std::string who = made->label_.name + " over '" + made->label_.axes + "': ";
  for (const MessageGroup& group : groups) {
    const auto index = static_cast<uint32_t>(made->groups_.size());
    made->groups_.push_back(static_cast<uint32_t>(made->ranks_.size()));
    made->lists_ += group.list + ",";
    bool concerned = false;
    for (uint32_t i = 0; i < group.ranks.size(); ++i) {
      const auto rank = static_cast<uint32_t>(made->ranks_.size());
      made->ranks_.push_back({group.ranks[i].process, group.ranks[i].device, index});
      if (group.ranks[i].process != process) continue;
      concerned = true;
      const std::shared_ptr<const Messages> list = i < group.lists.size() ? group.lists[i] : nullptr;
      if (!list || list->rank() != i || list->ranks() != group.ranks.size()) {
        return InvalidArgument(who + "'" + group.list + "' is no list of messages for rank " + std::to_string(i) +
                               " of " + std::to_string(group.ranks.size()));
      }
      made->locals_.push_back({rank, list, std::nullopt});
    }
    made->concerned_.push_back(concerned);
    for (const MessageGroup::Rank& rank : group.ranks) {
      if (concerned && rank.process != process) made->others_.push_back(rank.process);
    }
  }
  made->groups_.push_back(static_cast<uint32_t>(made->ranks_.size()));
  std::sort(made->others_.begin(), made->others_.end());
  made->others_.erase(std::unique(made->others_.begin(), made->others_.end()), made->others_.end());
  if (made->locals_.empty()) {
    return InvalidArgument(who + "process " + std::to_string(process) + " has no rank in any group");
  }
  return made;
}

Status MessageSite::SetLeaves(const std::vector<Leaf>& leaves, Stats& stats) {
  std::call_once(once_, [&] {
    for (const Leaf& leaf : leaves) {
      // Nothing is combined in an all-gather, so every type of that width will do.
      reduces_.push_back(FindReduce(leaf.dtype, kind_ == Kind::kAllGather ? Reduction::kSum : reduction_));
      if (reduces_.back() == nullptr) {
        status_ = Status(Code::kUnimplemented, label_.name + ": complex numbers have no order, so no max or min");
        return;
      }
    }
    layout_.emplace(leaves);
    for (Local& local : locals_) {
      Result<MessageGraph> graph = MessageGraph::Make(*local.list, *layout_, kind_);
      if (!graph.ok()) {
        status_ = InvalidArgument(label_.name + " over '" + label_.axes + "': " + graph.status().message());
        return;
      }
      local.graph.emplace(std::move(graph.value()));
    }
    Describe();
    const uint32_t group = ranks_[locals_[0].rank].group;
    stats_ =
        stats.Site({label_.name, label_.axes, label_.plan, groups_[group + 1] - groups_[group], layout_->payload()});
    scratch_ = std::make_unique<ScratchPool>(2 * locals_.size());
  });
  return status_;
}

void MessageSite::Describe() {
  const std::vector<Leaf>& leaves = layout_->leaves();
  std::string exact = label_.name + "|" + label_.axes + "|" + label_.plan + "|" + lists_ + "|" +
                      std::to_string(static_cast<int>(kind_)) + "|" + std::to_string(static_cast<int>(reduction_));
  for (const Leaf& leaf : leaves) {
    exact += "|" + std::string(kDTypes[static_cast<int>(leaf.dtype)]) + ":" + std::to_string(leaf.bytes);
  }
  for (const Rank& rank : ranks_) exact += "|" + std::to_string(rank.device) + ":" + std::to_string(rank.group);
  fingerprint_ = Hash(exact);

  std::string values;
  for (size_t i = 0; i < leaves.size() && i < kNamedLeaves; ++i) {
    const int64_t elements = leaves[i].bytes / static_cast<int64_t>(ByteWidth(leaves[i].dtype));
    values += (i > 0 ? ", " : "") + std::string(kDTypes[static_cast<int>(leaves[i].dtype)]) + "[" +
              std::to_string(elements) + "]";
  }
  if (leaves.size() > kNamedLeaves) values += " and " + std::to_string(leaves.size() - kNamedLeaves) + " more";
  text_ = label_.name + " over '" + label_.axes + "', " + values + " (" + FormatBytes(layout_->payload()) + "), plan " +
          label_.plan + ", at " + label_.where;
}

std::optional<uint32_t> MessageSite::FindLocal(uint32_t rank) const {
  const auto at = std::lower_bound(locals_.begin(), locals_.end(), rank,
                                   [](const Local& local, uint32_t sought) { return local.rank < sought; });
  if (at == locals_.end() || at->rank != rank) return std::nullopt;
  return static_cast<uint32_t>(std::distance(locals_.begin(), at));
}

}  // namespace jaxcomm

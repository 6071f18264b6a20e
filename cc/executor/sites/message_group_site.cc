#include "cc/executor/sites/message_group_site.h"

#include <utility>

#include "cc/executor/sites/message_calls.h"

namespace jaxcomm {

Result<std::shared_ptr<MessageGroupSite>> MessageGroupSite::Make(MessageSite::Label label, uint64_t communicator,
                                                                 uint32_t site, const std::vector<MessageRank>& ranks,
                                                                 std::vector<std::string> lists,
                                                                 MessageRegistry& registry, uint32_t process) {
  if (lists.empty() || lists.size() + 1 != ranks.size()) {
    return InvalidArgument(label.name + " over '" + label.axes + "': needs one list per group size, 2 to all ranks");
  }
  std::shared_ptr<MessageGroupSite> made(new MessageGroupSite(registry, std::move(lists)));
  MessageGroup all{ranks, made->lists_.back(), {}};
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    all.lists.push_back(ranks[rank].process == process ? registry.Find(all.list, rank) : nullptr);
  }
  Result<std::shared_ptr<MessageSite>> whole =
      MessageSite::Make(std::move(label), {Kind::kAllReduce, Reduction::kSum}, communicator, site, {all}, process);
  if (!whole.ok()) return whole.status();
  made->whole_ = std::move(whole.value());
  return made;
}

void MessageGroupSite::Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) {
  const GroupNumbers row = RowOf(buffers, whole_->ranks().size());
  const MessageSite::Label& label = whole_->label();
  Status refused = CheckRow(label.name + " over '" + label.axes + "'", rank, row);
  std::shared_ptr<const MessageSite> site = whole_;
  if (refused.ok()) {
    Result<std::shared_ptr<const MessageSite>> divided = Regroup(row);
    if (divided.ok()) site = std::move(divided.value());
    refused = divided.status();
  }
  executors.messages().Arrive(site, run, rank, std::move(buffers), std::move(done), refused);
}

Result<std::shared_ptr<const MessageSite>> MessageGroupSite::Regroup(const GroupNumbers& row) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto* const kept = regrouped_.Find(row)) return *kept;
  std::vector<std::vector<uint32_t>> groups(row.size());
  for (uint32_t rank = 0; rank < row.size(); ++rank) groups[static_cast<size_t>(row[rank])].push_back(rank);
  std::vector<SiteRanks::Members> members;
  for (std::vector<uint32_t>& group : groups) {
    if (!group.empty()) members.push_back(WithList(std::move(group)));
  }
  Result<std::shared_ptr<const MessageSite>> made = whole_->Regroup(members, TextOf(row));
  if (!made.ok()) return made.status();
  regrouped_.Add(row, made.value());
  return made;
}

SiteRanks::Members MessageGroupSite::WithList(std::vector<uint32_t> ranks) const {
  SiteRanks::Members members{std::move(ranks), "", {}};
  if (members.ranks.size() == 1) return members;
  members.list = lists_[members.ranks.size() - 2];
  for (uint32_t i = 0; i < members.ranks.size(); ++i) {
    const bool is_here = whole_->ranks()[members.ranks[i]].process == whole_->process();
    members.lists.push_back(is_here ? registry_.Find(members.list, i) : nullptr);
  }
  return members;
}

}  // namespace jaxcomm

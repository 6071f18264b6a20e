#include "cc/executor/sites/site_ranks.h"

#include <iterator>
#include <utility>

#include "cc/base/hash.h"

namespace jaxcomm {
namespace {

void MakeSet(std::vector<uint32_t>& processes) {
  std::sort(processes.begin(), processes.end());
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
}

}  // namespace

uint64_t CommunicatorOf(const std::vector<MessageGroup>& groups) {
  std::string devices;
  for (const MessageGroup& group : groups) {
    for (const MessageRank& rank : group.ranks) {
      devices += std::to_string(rank.process) + ":" + std::to_string(rank.device) + ",";
    }
    devices += "|";
  }
  return Hash(devices);
}

Result<SiteRanks> SiteRanks::Make(const std::vector<MessageGroup>& groups, uint32_t process, bool has_lists) {
  SiteRanks made(process, has_lists, groups.size() == 1 ? groups[0].names : std::vector<uint32_t>());
  std::vector<Members> members;
  for (const MessageGroup& group : groups) {
    Members& numbered = members.emplace_back(Members{{}, group.list, group.lists});
    for (const MessageRank& rank : group.ranks) {
      numbered.ranks.push_back(static_cast<uint32_t>(made.ranks_.size()));
      made.ranks_.push_back({rank, /*group=*/0});
      if (rank.process != process) made.everybody_.push_back(rank.process);
    }
  }
  MakeSet(made.everybody_);
  made.are_devices_ = groups.size() > 1;
  if (Status status = made.SetGroups(members); !status.ok()) return status;
  if (made.locals_.empty()) {
    return InvalidArgument("process " + std::to_string(process) + " has no rank in any group");
  }
  return made;
}

Result<SiteRanks> SiteRanks::Regroup(const std::vector<Members>& groups, bool change_from_call_to_call) const {
  SiteRanks made(process_, has_lists_, names_);
  made.ranks_ = ranks_;
  made.everybody_ = everybody_;
  made.are_devices_ = groups.size() > 1 && !change_from_call_to_call;
  if (Status status = made.SetGroups(groups); !status.ok()) return status;
  return made;
}

Status SiteRanks::SetGroups(const std::vector<Members>& groups) {
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
      const bool fits =
          list ? list->rank() == i && list->ranks() == group.ranks.size() : group.ranks.size() == 1 || !has_lists_;
      if (!fits) {
        return InvalidArgument("'" + group.list + "' is not a list of messages for rank " + std::to_string(i) + " of " +
                               std::to_string(group.ranks.size()));
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

std::optional<uint32_t> SiteRanks::FindLocal(uint32_t rank) const {
  const auto at = std::lower_bound(locals_.begin(), locals_.end(), rank,
                                   [](const Local& local, uint32_t sought) { return local.rank < sought; });
  if (at == locals_.end() || at->rank != rank) return std::nullopt;
  return static_cast<uint32_t>(std::distance(locals_.begin(), at));
}

int64_t SiteRanks::CountHere() const {
  const uint32_t host = ranks_[locals_[0].rank].host;
  return std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.host == host; });
}

std::string SiteRanks::PlaceOf(uint32_t rank) const {
  const std::string process = "process " + std::to_string(ranks_[rank].process);
  return ranks_[rank].host_name ? process + " on " + *ranks_[rank].host_name : process;
}

std::string SiteRanks::lists() const {
  std::string names;
  for (const std::string& list : lists_) names += list + ",";
  return names;
}

}  // namespace jaxcomm

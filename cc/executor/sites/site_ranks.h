// The ranks of a call site between processes: the ranks' places and groups, and which ranks are in this process.
//
//   Result<SiteRanks> ranks = SiteRanks::Make(groups, /*process=*/0);
//   ranks.value()[3].host;                                            // the host of rank 3
//   Result<SiteRanks> regrouped = ranks.value().Regroup({{{0, 2}, …}, {{1, 3}, …}}, true);
//
// Ranks are numbered over all groups: the ranks of the first group come first, then the ranks of the second group, and
// so on. Regrouped ranks keep their numbers. Immutable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// A device that runs calls, and the place of the device.
struct MessageRank {
  uint32_t process;
  uint32_t device;  // the rank's name in error texts, the same in all processes
  uint32_t host = 0;
  std::shared_ptr<const std::string> host_name = nullptr;  // null if unknown
};

// Ranks that join the same calls.
struct MessageGroup {
  std::vector<MessageRank> ranks;
  std::string list;                                    // the name of the group's list of messages
  std::vector<std::shared_ptr<const Messages>> lists;  // by rank; null for ranks of other processes
  std::vector<uint32_t> names = {};                    // the ranks' names in error texts; if empty, see SiteRanks::Make
};

// Returns a hash that names these groups of devices, the same in all processes.
uint64_t CommunicatorOf(const std::vector<MessageGroup>& groups);

class SiteRanks {
 public:
  struct Rank : MessageRank {
    uint32_t group;
  };
  // A rank of this process.
  struct Local {
    uint32_t rank;
    std::shared_ptr<const Messages> list;
    std::vector<uint32_t> others;  // the other processes that have a rank in the same group
  };
  // A group of ranks that join the same calls. ranks[i] runs the list of messages as the list's rank i. A group of one
  // rank has no list.
  struct Members {
    std::vector<uint32_t> ranks;
    std::string list;
    std::vector<std::shared_ptr<const Messages>> lists;  // as in MessageGroup
  };

  // Error texts name the ranks of a single group by the group's `names` or, without these, by rank number. Error texts
  // name the ranks of several groups by device number. Fails if a list is missing or is for another rank, or if no
  // group has a rank of the process.
  // `has_lists`: false if the ranks only exchange operands, which needs no list.
  static Result<SiteRanks> Make(const std::vector<MessageGroup>& groups, uint32_t process, bool has_lists = true);
  // Returns the same ranks in these groups. With `change_from_call_to_call`, error texts name ranks by rank number.
  Result<SiteRanks> Regroup(const std::vector<Members>& groups, bool change_from_call_to_call) const;

  uint32_t process() const { return process_; }
  size_t size() const { return ranks_.size(); }
  const Rank& operator[](uint32_t rank) const { return ranks_[rank]; }
  auto begin() const { return ranks_.begin(); }
  auto end() const { return ranks_.end(); }
  const std::vector<std::vector<uint32_t>>& groups() const { return groups_; }
  const std::vector<uint32_t>& GroupOf(uint32_t rank) const { return groups_[ranks_[rank].group]; }
  // Whether the rank's group has ranks on several hosts.
  bool IsBetweenHosts(uint32_t rank) const { return between_hosts_[ranks_[rank].group]; }
  // The name of a group's list of messages.
  const std::string& list(uint32_t group) const { return lists_[group]; }
  // The names of all groups' lists, in one text.
  std::string lists() const;

  // The ranks of this process, in ascending order; never empty.
  const std::vector<Local>& locals() const { return locals_; }
  // The index of a rank in locals(); nullopt for ranks of other processes.
  std::optional<uint32_t> FindLocal(uint32_t rank) const;
  // The number of ranks on this process's host.
  int64_t CountHere() const;

  // The rank's name in error texts.
  uint32_t NameOf(uint32_t rank) const {
    if (!names_.empty()) return names_[rank];
    return are_devices_ ? ranks_[rank].device : rank;
  }
  // Whether the names of a group's ranks differ from 0, 1, 2, ….
  bool are_named() const { return groups_.size() > 1 || !names_.empty(); }
  // The place of a rank in words: "process 3 on node-b".
  std::string PlaceOf(uint32_t rank) const;

  // Whether the group of `rank` has a rank of this process.
  bool Concerns(uint32_t rank) const { return concerned_[ranks_[rank].group]; }
  // The other processes that share a group with this process.
  const std::vector<uint32_t>& others() const { return others_; }
  bool HasRankOf(uint32_t process) const { return std::binary_search(others_.begin(), others_.end(), process); }
  // All other processes that have a rank in one of the groups.
  const std::vector<uint32_t>& everybody() const { return everybody_; }
  bool Knows(uint32_t process) const { return std::binary_search(everybody_.begin(), everybody_.end(), process); }

 private:
  SiteRanks(uint32_t process, bool has_lists, std::vector<uint32_t> names)
      : process_(process), has_lists_(has_lists), names_(std::move(names)) {}
  Status SetGroups(const std::vector<Members>& groups);

  uint32_t process_;
  bool has_lists_;
  std::vector<uint32_t> names_;
  bool are_devices_ = false;  // whether error texts name ranks by their devices
  std::vector<Rank> ranks_;
  std::vector<uint32_t> everybody_;
  std::vector<std::vector<uint32_t>> groups_;
  std::vector<Local> locals_;
  std::vector<uint32_t> others_;
  std::vector<bool> concerned_, between_hosts_;  // by group
  std::vector<std::string> lists_;               // by group: the name of its list
};

}  // namespace jaxcomm

// What all calls of one call site between processes have in common, as one of the processes sees it.
//
//   Result<std::shared_ptr<MessageSite>> site = MessageSite::Make(
//       {"psum", "data", "none", "train.py:57"}, Kind::kAllReduce, Reduction::kSum, /*module=*/hash, /*site=*/3,
//       groups, /*process=*/0);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());   // at each call; the first one fixes them
//   executor.ArriveAcross(site.value(), run_id, rank, buffers, done);
//
// Ranks are numbered over all groups: those of the second group follow those of the first, and so on. Immutable once
// the leaves are set; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "cc/executor/message_graph.h"
#include "cc/executor/scratch.h"
#include "cc/executor/stats.h"
#include "cc/kernels/reduce.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// Ranks that call together.
struct MessageGroup {
  struct Rank {
    uint32_t process;
    uint32_t device;  // the rank's name in messages, alike in all processes
  };

  std::vector<Rank> ranks;
  std::string list;                                    // the name of its list of messages
  std::vector<std::shared_ptr<const Messages>> lists;  // by rank; none for those of other processes
};

class MessageSite {
 public:
  struct Label {
    std::string name, axes, plan;
    std::string where;  // the user's line: "train.py:57"
  };

  // An error: a list that is missing or is for another rank, or a process of which no rank is in any group.
  static Result<std::shared_ptr<MessageSite>> Make(Label label, Kind kind, Reduction reduction, uint64_t module,
                                                   uint32_t site, const std::vector<MessageGroup>& groups,
                                                   uint32_t process);

  // Fixes the leaves at the first call; later calls find the same ones. For a reduce-scatter and an all-gather a leaf's
  // bytes are those of one slice. An error: the messages do not make this collective of them.
  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats);

  struct Rank {
    uint32_t process;
    uint32_t device;
    uint32_t group;
  };
  // A rank of this process.
  struct Local {
    uint32_t rank;
    std::shared_ptr<const Messages> list;
    std::optional<MessageGraph> graph;
  };

  const Label& label() const { return label_; }
  Kind kind() const { return kind_; }
  uint64_t module() const { return module_; }
  uint32_t site() const { return site_; }
  uint32_t process() const { return process_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Where the ranks of a group begin, and behind the last group the number of ranks.
  const std::vector<uint32_t>& groups() const { return groups_; }
  // The number of ranks in a rank's group.
  uint32_t GroupSize(uint32_t rank) const {
    return groups_[ranks_[rank].group + 1] - groups_[ranks_[rank].group];
  }
  const std::vector<Local>& locals() const { return locals_; }
  // The index of a rank of this process among `locals`; none: it is another's.
  std::optional<uint32_t> FindLocal(uint32_t rank) const;
  // What messages call a rank: its place in the group, or where there are several groups its device.
  uint32_t NameOf(uint32_t rank) const { return groups_.size() > 2 ? ranks_[rank].device : rank; }
  // Whether a rank of this process is in the rank's group.
  bool Concerns(uint32_t rank) const { return concerned_[ranks_[rank].group]; }
  // The other processes that have a rank in a group with one of this process.
  const std::vector<uint32_t>& others() const { return others_; }
  bool HasRankOf(uint32_t process) const { return std::binary_search(others_.begin(), others_.end(), process); }

  const Layout& layout() const { return *layout_; }
  const std::vector<ReduceFn>& reduces() const { return reduces_; }
  uint64_t fingerprint() const { return fingerprint_; }
  const std::string& text() const { return text_; }
  SiteStats& stats() const { return *stats_; }
  ScratchPool& scratch() const { return *scratch_; }

 private:
  MessageSite() = default;
  void Describe();

  Label label_;
  Kind kind_;
  Reduction reduction_;
  uint64_t module_;
  uint32_t site_, process_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> groups_;
  std::vector<Local> locals_;
  std::vector<bool> concerned_;  // by group
  std::vector<uint32_t> others_;
  std::string lists_;  // their names

  std::once_flag once_;
  Status status_;
  std::optional<Layout> layout_;
  std::vector<ReduceFn> reduces_;  // one per leaf
  uint64_t fingerprint_ = 0;
  std::string text_;
  std::shared_ptr<SiteStats> stats_;
  std::unique_ptr<ScratchPool> scratch_;
};

}  // namespace jaxcomm

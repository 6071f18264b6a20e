// A call site between processes, as one of the processes sees it.
//
//   Result<std::shared_ptr<MessageSite>> site = MessageSite::Make(
//       {"psum", "data", "none", "train.py:57"}, Kind::kAllReduce, Reduction::kSum, CommunicatorOf(groups),
//       /*site=*/3, groups, /*process=*/0);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());   // at each call; the first one fixes them
//   executor.messages().Arrive(site.value(), run_id, rank, buffers, done);
//
// Ranks are numbered over all groups: those of the second group follow those of the first, and so on. Where groups
// change from call to call, there is a site for each way to group the ranks, whose numbers stay the same:
//
//   Result<std::shared_ptr<const MessageSite>> groups = site.value()->Regroup({{{0, 2}, …}, {{1, 3}, …}}, "[0 1 0 1]");
//
// Immutable once the leaves are set; thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/call_site.h"
#include "cc/executor/call_site_stats.h"
#include "cc/executor/kind.h"
#include "cc/executor/layout.h"
#include "cc/executor/message_graph.h"
#include "cc/executor/plan_selector.h"
#include "cc/executor/schedule_selector.h"
#include "cc/executor/scratch.h"
#include "cc/executor/timer.h"
#include "cc/kernels/importance.h"
#include "cc/kernels/reduce.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// The part of a sum that the network may lose; a lost segment counts as the mean of those that came.
struct AllowedLoss {
  std::vector<double> shares;  // by leaf, of each message
  int64_t segment_bytes;       // of a leaf, that are important or not

  static constexpr int64_t kMinSegmentBytes = 1024;
};

// Ranks that call together.
struct MessageGroup {
  struct Rank {
    uint32_t process;
    uint32_t device;  // the rank's name in messages, alike in all processes
    uint32_t host = 0;
    std::shared_ptr<const std::string> host_name = nullptr;  // none: not known
  };

  std::vector<Rank> ranks;
  std::string list;                                    // the name of its list of messages
  std::vector<std::shared_ptr<const Messages>> lists;  // by rank; null for ranks of other processes
};

// The name of these groups of devices, the same in all processes.
uint64_t CommunicatorOf(const std::vector<MessageGroup>& groups);

// The calls of a compiled step on one communicator.
struct Step {
  uint64_t hash = 0;  // of its types and lines; differs between steps
  std::atomic<uint32_t> calls{0};
};

class MessageSite : public CallSite, public std::enable_shared_from_this<MessageSite> {
 public:
  struct Label {
    std::string name, axes, plan;
    std::string where;                           // the user's line: "train.py:57"
    std::shared_ptr<const Step> step = nullptr;  // none: a call of no step
    uint32_t number = 0;                         // the call's place in its step
  };

  // An error: a list is missing or for another rank, or the process has no rank in any group.
  static Result<std::shared_ptr<MessageSite>> Make(Label label, Kind kind, Reduction reduction, uint64_t communicator,
                                                   uint32_t site, const std::vector<MessageGroup>& groups,
                                                   uint32_t process, std::optional<AllowedLoss> loss = std::nullopt);

  // Before the first call, of one group: this site has schedule 0 of the selector's, `others` are sites of the same
  // calls with the schedules 1, 2, ….
  void SelectFrom(std::vector<std::shared_ptr<MessageSite>> others, std::shared_ptr<ScheduleSelector> selector);
  // Null: calls run one list of messages.
  ScheduleSelector* selector() const { return selector_.get(); }
  // The number of this site's schedule among those of its selector.
  uint32_t schedule() const { return schedule_; }
  // Of a site that SelectFrom was called on: the site of a schedule; this one if there is no such schedule.
  std::shared_ptr<const MessageSite> With(uint32_t schedule) const;
  // Whether this process decides on the schedules of calls.
  bool decides() const { return selector_ && ranks_[selector_->decider()].process == process_; }
  // Of a site that SelectFrom was called on: whether it is the fingerprint of one of its schedules.
  bool HasFingerprint(uint64_t fingerprint) const;

  // Before the first call, of an all-reduce: its calls follow the plan of the run.
  void FollowPlans() { followed_ = std::make_shared<Followed>(); }
  bool follows_plans() const { return followed_ != nullptr; }
  // Once the leaves are set: the site of the same calls with the plan's lists, which counts the plan's calls. Null, or
  // for groups of another size: this site. Keeps the site of the latest plan.
  Result<std::shared_ptr<const MessageSite>> Following(const std::shared_ptr<const PlannedLists>& plan) const;

  // Before the first call, of an all-reduce: results and operands have memory of their own.
  void SeparateResults() { is_in_place_ = false; }
  // Before the first call, of one group: the numbers by which messages to the user call its ranks.
  void NameRanks(std::vector<uint32_t> names) { names_ = std::move(names); }

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override;
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override;
  void Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Refuse(Executor& executor, int64_t run, uint32_t rank, const Status& why) const override;
  void Forget(Executor& executor) const override;

  // Ranks that call together, in the order of their list; one that is alone has none.
  struct Members {
    std::vector<uint32_t> ranks;
    std::string list;
    std::vector<std::shared_ptr<const Messages>> lists;  // as of a MessageGroup
  };
  // The site of the same calls with each rank in one of these groups, once the leaves are set. It shares all that does
  // not depend on groups. `row`: the groups, for messages.
  Result<std::shared_ptr<const MessageSite>> Regroup(const std::vector<Members>& groups, std::string row) const;

  struct Rank {
    uint32_t process;
    uint32_t device;
    uint32_t host;
    uint32_t group;
    std::shared_ptr<const std::string> host_name;
  };
  // A rank of this process.
  struct Local {
    uint32_t rank;
    std::shared_ptr<const Messages> list;
    std::vector<uint32_t> others;  // the other processes that have a rank in its group
  };

  const Label& label() const { return label_; }
  // The name of a call in errors; 0: of any.
  CallName NameCall(int64_t number = 0) const {
    return {label_.name, label_.axes, label_.plan, number == 0 ? 0 : layout().payload(), number};
  }
  Kind kind() const { return kind_; }
  uint64_t communicator() const { return communicator_; }
  uint64_t step() const { return label_.step ? label_.step->hash : 0; }
  uint32_t site() const { return site_; }
  uint32_t process() const { return process_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // The ranks of each group.
  const std::vector<std::vector<uint32_t>>& groups() const { return groups_; }
  const std::vector<uint32_t>& GroupOf(uint32_t rank) const { return groups_[ranks_[rank].group]; }
  const std::vector<Local>& locals() const { return locals_; }
  // The index of a rank of this process among `locals`; none: it is another's.
  std::optional<uint32_t> FindLocal(uint32_t rank) const;
  // Once the leaves are set, makes the ranks' graphs, which takes milliseconds: sites of With and Following leave it to
  // their first call. An error: a list is invalid.
  Status MakeGraphs() const;
  bool has_graphs() const { return graphs_->are_made; }
  // Once they are made: of a rank of `locals`.
  const MessageGraph& graph(uint32_t local) const { return *graphs_->by_local[local]; }
  // The rank's name in messages to the user: its number, or its device if there are several groups that never change.
  uint32_t NameOf(uint32_t rank) const {
    if (!names_.empty()) return names_[rank];
    return groups_.size() > 1 && !is_regrouped() ? ranks_[rank].device : rank;
  }
  // "process 3 on node-b", of a rank.
  std::string PlaceOf(uint32_t rank) const {
    const std::string process = "process " + std::to_string(ranks_[rank].process);
    return ranks_[rank].host_name ? process + " on " + *ranks_[rank].host_name : process;
  }
  // Whether the names of a group's ranks differ from 0, 1, 2, ….
  bool names_ranks() const { return groups_.size() > 1 || !names_.empty(); }
  // Whether a rank of this process is in the rank's group.
  bool Concerns(uint32_t rank) const { return concerned_[ranks_[rank].group]; }
  // The other processes that have a rank in a group with one of this process.
  const std::vector<uint32_t>& others() const { return others_; }
  bool HasRankOf(uint32_t process) const { return std::binary_search(others_.begin(), others_.end(), process); }
  // All other processes that have a rank.
  const std::vector<uint32_t>& everybody() const { return everybody_; }
  bool Knows(uint32_t process) const { return std::binary_search(everybody_.begin(), everybody_.end(), process); }

  // Whether Regroup made it.
  bool is_regrouped() const { return !row_.empty(); }
  // Whether both belong to one call site.
  bool IsOf(const MessageSite& site) const { return common_ == site.common_; }

  const Layout& layout() const { return *common_->layout; }
  const std::optional<AllowedLoss>& loss() const { return loss_; }
  // Multiplies elements of a leaf.
  ScaleFn scale(size_t leaf) const { return FindScale(layout().leaves()[leaf].dtype); }
  // Where the segments of a leaf begin among those of all leaves.
  int64_t FirstSegment(size_t leaf) const { return common_->first_segments[leaf]; }
  // Whether a call is so small that waking threads would take most of its time.
  bool is_small() const;
  // Whether a call is so small, and adds so simply, that its ranks may exchange their operands at once.
  bool may_exchange() const { return !exchanging_.empty(); }
  // The processes of such a call, by rank.
  const std::vector<uint32_t>& exchanging() const { return exchanging_; }
  // The names of its groups' lists.
  std::string lists() const;
  // Whether stores that no task reads again go past the caches.
  bool streams() const { return common_->streams; }
  const std::vector<ReduceFn>& reduces() const { return common_->reduces; }
  uint64_t fingerprint() const { return fingerprint_; }
  const std::string& text() const { return text_; }
  // The error of a call that this site is one rank's of, and `text` that of another one.
  Status Differs(const CallName& call, uint32_t rank, const std::string& text, uint32_t mine) const;
  SiteStats& stats() const { return *stats_; }
  // A rank's call ends; and the seconds since then, negative before its first call.
  void Leave(uint32_t rank, Clock::time_point now) const;
  double SecondsSinceLeft(uint32_t rank, Clock::time_point now) const;
  ScratchPool& scratch() const { return *common_->scratch; }

 private:
  // Shared by all sites that Regroup and Following make of one.
  struct Common {
    std::once_flag once;  // the leaves are set
    Status status;
    std::optional<Layout> layout;
    bool streams = false;
    std::vector<ReduceFn> reduces;        // one per leaf
    std::vector<int64_t> first_segments;  // by leaf, of a sum that may lose some
    CallSiteStats* stats = nullptr;       // of the process
    std::unique_ptr<ScratchPool> scratch;

    std::mutex mutex;
    // By list, its rank, and whether its ranks are on several hosts.
    std::map<std::tuple<std::string, uint32_t, bool>, std::weak_ptr<const MessageGraph>> graphs;
    std::map<uint32_t, Clock::time_point> left;
  };

  struct Graphs {
    std::once_flag once;
    Status status;
    std::vector<std::shared_ptr<const MessageGraph>> by_local;
    std::atomic<bool> are_made{false};
  };

  struct Followed {
    std::mutex mutex;
    std::shared_ptr<const PlannedLists> plan;  // the latest
    std::shared_ptr<const MessageSite> site;   // with its lists
  };

  MessageSite() = default;
  MessageSite(const MessageSite&) = default;
  // The number of slices of a rank's larger buffer; of an all-reduce, one.
  int64_t Slices() const;
  std::string who() const { return label_.name + " over '" + label_.axes + "': "; }
  Status SetGroups(const std::vector<Members>& groups);
  // The segments of a leaf of a sum that may lose some.
  int64_t SegmentsOf(const Leaf& leaf) const { return (leaf.bytes + loss_->segment_bytes - 1) / loss_->segment_bytes; }
  Status CheckLoss(const std::vector<Leaf>& leaves) const;
  // All that the leaves determine but the graphs.
  Status Fix(const std::vector<Leaf>& leaves, CallSiteStats& stats);
  Result<std::shared_ptr<const MessageGraph>> MakeGraph(const Local& local) const;
  void Describe();
  std::string DescribeSchedule() const;
  void FindExchanging();
  void CountCalls();

  Label label_;
  Kind kind_;
  Reduction reduction_;
  bool is_in_place_ = true;
  std::vector<uint32_t> names_;  // none: as NameOf says
  std::optional<AllowedLoss> loss_;
  uint64_t communicator_;
  uint32_t site_, process_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> everybody_;
  std::vector<std::vector<uint32_t>> groups_;
  std::vector<Local> locals_;  // ascending
  std::shared_ptr<Graphs> graphs_;
  std::vector<bool> concerned_;  // by group
  std::vector<uint32_t> others_;
  std::vector<std::string> lists_;   // their names, by group
  std::vector<bool> between_hosts_;  // by group
  std::string row_;                  // of a site that Regroup made
  uint64_t fingerprint_ = 0;
  std::string text_;
  std::vector<uint32_t> exchanging_;  // by rank of the group; none: calls do not exchange
  std::shared_ptr<Common> common_;
  std::shared_ptr<SiteStats> stats_;
  std::shared_ptr<ScheduleSelector> selector_;          // shared by the sites of its schedules
  std::vector<std::shared_ptr<MessageSite>> selected_;  // the others, of schedule 0
  uint32_t schedule_ = ScheduleSelector::kDefault;
  std::shared_ptr<Followed> followed_;  // null: calls follow no plan of the run
};

}  // namespace jaxcomm

// A call site between processes, as one of these processes knows it.
//
//   Result<std::shared_ptr<MessageSite>> site = MessageSite::Make(
//       {"psum", "data", "none", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, CommunicatorOf(groups),
//       /*site=*/3, groups, /*process=*/0);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());   // at each call; only the first call sets them
//   executor.messages().Arrive(site.value(), run_id, rank, buffers, done);
//
// Ranks are numbered as in site_ranks.h. If groups change from call to call, each grouping of the ranks has a site:
//
//   Result<std::shared_ptr<const MessageSite>> groups = site.value()->Regroup({{{0, 2}, …}, {{1, 3}, …}}, "[0 1 0 1]");
//
// Immutable once the leaves are set; thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/executor/calls/call_site_stats.h"
#include "cc/executor/decide/decided_site.h"
#include "cc/executor/decide/plan_selector.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/executor/sites/recent_times.h"
#include "cc/executor/sites/scratch.h"
#include "cc/executor/sites/site_graphs.h"
#include "cc/executor/sites/site_leaves.h"
#include "cc/executor/sites/site_ranks.h"
#include "cc/executor/sites/site_text.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/lossy_transport.h"

namespace jaxcomm {

// The calls of a compiled step on one communicator.
struct Step {
  uint64_t hash = 0;  // a hash of the step's types and of the line and the devices of its first call
  std::atomic<uint32_t> calls{0};
};

class MessageSite final : public CallSite, public DecidedSite, public std::enable_shared_from_this<MessageSite> {
 public:
  struct Label {
    std::string name, axes, plan;                // all-reduces with the plan "auto" follow the plan of the run
    std::string where;                           // the line of the call in the user's program: "train.py:57"
    std::shared_ptr<const Step> step = nullptr;  // null for a call outside a step
    uint32_t number = 0;                         // the index of the call in its step
  };

  // Fails if SiteRanks::Make fails.
  static Result<std::shared_ptr<MessageSite>> Make(Label label, Collective collective, uint64_t communicator,
                                                   uint32_t site, const std::vector<MessageGroup>& groups,
                                                   uint32_t process);

  // Called only for a site of one group, before the site's first call. This site becomes the selector's schedule 0, and
  // the sites in `others` become schedules 1, 2, ….
  void SelectFrom(std::vector<std::shared_ptr<MessageSite>> others, std::shared_ptr<ScheduleSelector> selector);
  ScheduleSelector* selector() const override { return selector_.get(); }
  // The number of this site's schedule among the selector's schedules.
  uint32_t schedule() const { return schedule_; }
  // After SelectFrom, returns the site of a schedule. Returns this site if there is no such schedule.
  std::shared_ptr<const MessageSite> With(uint32_t schedule) const;
  // Whether this site has the fingerprint. After SelectFrom, whether the site of at least one of the schedules has the
  // fingerprint.
  bool HasFingerprint(uint64_t fingerprint) const;

  bool follows_plans() const override { return followed_ != nullptr && !selector_; }
  // Called after SetLeaves. Returns a site that has the same calls but runs the plan's lists and has its own
  // statistics. Returns this site if the plan is null or is for groups of another size. Keeps the site of the latest
  // plan.
  Result<std::shared_ptr<const MessageSite>> Following(const std::shared_ptr<const PlannedLists>& plan) const;

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override;
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override;
  void Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Refuse(Executors& executors, int64_t run, uint32_t rank, const Status& why) const override;
  void Forget(Executors& executors) const override;

  // Called after SetLeaves. Returns a site for the same calls in these groups. Each rank must be in one group. The two
  // sites share all state that does not depend on groups. `row`: the groups as text, for errors.
  Result<std::shared_ptr<const MessageSite>> Regroup(const std::vector<SiteRanks::Members>& groups,
                                                     std::string row) const;

  const Label& label() const { return label_; }
  const Collective& collective() const { return collective_; }
  const SiteRanks& ranks() const { return ranks_; }
  uint64_t communicator() const override { return communicator_; }
  uint64_t step() const override { return label_.step ? label_.step->hash : 0; }
  uint32_t site() const { return site_; }
  uint32_t process() const override { return ranks_.process(); }
  size_t num_ranks() const override { return ranks_.size(); }
  Place place(uint32_t rank) const override { return {ranks_[rank].process, ranks_[rank].host}; }
  // The groups as text, if Regroup made this site; otherwise empty.
  const std::string& row() const { return row_; }
  bool is_regrouped() const { return !row_.empty(); }
  // Whether the two sites belong to the same call site.
  bool IsOf(const MessageSite& site) const { return shared_ == site.shared_; }

  // The leaves and their layout. Called only after SetLeaves.
  const SiteLeaves& leaves() const { return *shared_->leaves; }
  const Layout& layout() const { return leaves().layout(); }
  // Makes the ranks' graphs, if they are not made yet. Fails if a list is invalid. The sites that With and Following
  // return make their graphs at their first call at the latest.
  Status MakeGraphs() const;
  bool has_graphs() const { return graphs_->are_made(); }
  // Must be called after MakeGraphs. Returns the message graph of the rank ranks().locals()[local].
  const MessageGraph& graph(uint32_t local) const { return (*graphs_)[local]; }
  // How the ranks of calls exchange operands without messages (operand_exchange.h, operand_transfer.h).
  struct Exchanging {
    std::vector<uint32_t> processes;  // the group's processes, by rank; empty if calls always use messages
    bool is_transfer = false;         // the first rank sends its operand to the second; the rest concerns exchanges
    bool in_place = false;            // as in jaxcomm::Exchange
    ReadPattern reads = ReadPattern::kAll;
  };
  const Exchanging& exchanging() const { return exchanging_; }
  uint64_t fingerprint() const { return text_.fingerprint; }
  const std::string& text() const { return text_.text; }
  SiteStats& stats() const { return *stats_; }
  // The seconds from the arrival of a rank of this process until that rank had received all lossy messages of the call.
  RecentTimes& loss_times() const { return shared_->loss_times; }
  // Returns the time after which the network may lose segments if the time limit begins at `now`. Returns
  // TimePoint::max() if the time limit follows the median and too few calls have been measured. Returns nullopt if the
  // call has no time limit.
  std::optional<LossLimit::TimePoint> LossesFrom(Clock::time_point now) const;
  ScratchPool& scratch() const { return *shared_->scratch; }

  // Returns the name of call `number` for errors. If `number` is 0, the name stands for all calls of the site.
  CallName NameCall(int64_t number = 0) const {
    return {label_.name, label_.axes, label_.plan, number == 0 ? 0 : layout().payload(), number};
  }
  // Returns the error of a call that rank `mine` joins from this site, but rank `rank` from another site. `text`
  // describes the other site.
  Status Differs(const CallName& call, uint32_t rank, const std::string& text, uint32_t mine) const;
  // Records that a rank's call has ended.
  void Leave(uint32_t rank, Clock::time_point now) const;
  // Returns the seconds from the end of the rank's previous call to `now`; negative if the rank has had no call.
  double SecondsSinceLeft(uint32_t rank, Clock::time_point now) const;

 private:
  // The state that a site shares with the sites that its Regroup and Following return.
  struct Shared {
    std::once_flag once;  // sets the leaves
    Status status;
    std::optional<SiteLeaves> leaves;
    CallSiteStats* stats = nullptr;  // the statistics of the process
    std::unique_ptr<ScratchPool> scratch;
    RecentTimes loss_times;

    std::mutex mutex;
    std::map<uint32_t, Clock::time_point> left;  // by rank: when the rank's latest call ended
  };
  struct Followed {
    std::mutex mutex;
    std::shared_ptr<const PlannedLists> plan;  // the latest plan
    std::shared_ptr<const MessageSite> site;   // the site of the latest plan
  };

  MessageSite(Label label, Collective collective, uint64_t communicator, uint32_t site, SiteRanks ranks);
  MessageSite(const MessageSite&) = default;

  // Returns a site of the same calls in these groups. The caller must make the new site's graphs and text.
  Result<std::shared_ptr<MessageSite>> In(const std::vector<SiteRanks::Members>& groups,
                                          bool change_from_call_to_call) const;
  // Sets everything that the leaves determine, except the graphs.
  Status Fix(const std::vector<Leaf>& leaves, CallSiteStats& stats);
  void FindExchanging();
  void CountCalls();

  Label label_;
  Collective collective_;
  uint64_t communicator_;
  uint32_t site_;
  SiteRanks ranks_;
  std::string row_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::shared_ptr<SiteGraphs> graphs_ = std::make_shared<SiteGraphs>(std::make_shared<GraphCache>());
  SiteText text_;
  Exchanging exchanging_;
  std::shared_ptr<SiteStats> stats_;
  std::shared_ptr<ScheduleSelector> selector_;          // shared by the sites of all the selector's schedules
  std::vector<std::shared_ptr<MessageSite>> selected_;  // sites of the other schedules; empty unless schedule_ is 0
  uint32_t schedule_ = ScheduleSelector::kDefault;
  std::shared_ptr<Followed> followed_;  // null: calls do not follow the plan of the run
};

}  // namespace jaxcomm

// A call site whose ranks live in one process and read each other's memory.
//
//   auto site = std::make_shared<LocalSite>("psum", "data", "none", Kind::kAllReduce, Reduction::kSum, program);
//
// Immutable once the leaves are set; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/executor/calls/call_site_stats.h"
#include "cc/executor/calls/kind.h"
#include "cc/executor/calls/layout.h"
#include "cc/executor/decide/schedule_selector.h"
#include "cc/kernels/reduce.h"
#include "cc/program/program.h"

namespace jaxcomm {

// Fails if the program's number of chunks does not fit the kind of collective. Called before a site is made.
Status CheckChunks(Kind kind, const Program& program);

class LocalSite : public CallSite, public std::enable_shared_from_this<LocalSite> {
 public:
  LocalSite(std::string name, std::string axes, std::string plan, Kind kind, Reduction reduction,
            std::shared_ptr<const Program> program);

  // Called before the first call. This site becomes schedule 0 of a selector, and `programs` become schedules 1, 2, ….
  void SelectFrom(const std::vector<std::shared_ptr<const Program>>& programs, ScheduleSelector::Rule rule);

  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override;
  void Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Forget(Executors& executors) const override;

  // Null if all calls run one program.
  ScheduleSelector* selector() const { return selector_.get(); }
  // The number of this site's schedule among the selector's schedules.
  uint32_t schedule() const { return schedule_; }
  // After SelectFrom: the site of a schedule.
  std::shared_ptr<const LocalSite> With(uint32_t schedule) const;

  const std::string& name() const { return name_; }
  const std::string& axes() const { return axes_; }
  const std::string& plan() const { return plan_; }
  Kind kind() const { return kind_; }
  const Program& program() const { return *program_; }
  const Layout& layout() const { return *layout_; }
  SiteStats& stats() const { return *stats_; }
  const std::vector<ReduceFn>& reduces() const { return reduces_; }

  // The range of the layout's bytes that an op reads and stores.
  int64_t Begin(const Op& op) const;
  int64_t End(const Op& op) const;
  // The number of bytes that a whole call reads and stores.
  int64_t work() const { return work_; }
  // Whether stores bypass the caches, because the buffers of all ranks together are larger than the caches.
  bool streams() const { return streams_; }

 private:
  const std::string name_, axes_, plan_;
  const Kind kind_;
  const Reduction reduction_;
  const std::shared_ptr<const Program> program_;
  std::once_flag once_;
  Status status_;
  std::optional<Layout> layout_;
  std::vector<ReduceFn> reduces_;  // one per leaf
  std::shared_ptr<SiteStats> stats_;
  std::shared_ptr<ScheduleSelector> selector_;        // shared by the sites of all the selector's schedules
  std::vector<std::shared_ptr<LocalSite>> selected_;  // sites of the other schedules; empty unless schedule_ is 0
  uint32_t schedule_ = ScheduleSelector::kDefault;
  int64_t work_ = 0;
  bool streams_ = false;
};

}  // namespace jaxcomm

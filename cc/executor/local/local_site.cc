#include "cc/executor/local/local_site.h"

#include <utility>

#include "cc/executor/local/local_executor.h"

namespace jaxcomm {
namespace {

// Stores bypass the caches if the buffers of all ranks together have at least this many bytes. Most processors have a
// smaller last-level cache. The size is a constant because many virtual machines report wrong cache sizes.
constexpr int64_t kStreamBytes = 64 << 20;

}  // namespace

Status CheckChunks(Kind kind, const Program& program) {
  if (kind == Kind::kAllReduce || program.chunks() == program.ranks()) return Status();
  return InvalidArgument("a program of " + std::to_string(program.chunks()) + " chunks cannot " +
                         (kind == Kind::kAllGather ? "all-gather" : "reduce-scatter") + " over " +
                         std::to_string(program.ranks()) + " ranks: each chunk is a rank's slice.");
}

LocalSite::LocalSite(std::string name, std::string axes, std::string plan, Kind kind, Reduction reduction,
                     std::shared_ptr<const Program> program)
    : name_(std::move(name)),
      axes_(std::move(axes)),
      plan_(std::move(plan)),
      kind_(kind),
      reduction_(reduction),
      program_(std::move(program)) {}

void LocalSite::SelectFrom(const std::vector<std::shared_ptr<const Program>>& programs, ScheduleSelector::Rule rule) {
  selector_ = std::make_shared<ScheduleSelector>(rule);
  for (const std::shared_ptr<const Program>& program : programs) {
    selected_.push_back(std::make_shared<LocalSite>(name_, axes_, plan_, kind_, reduction_, program));
    selected_.back()->selector_ = selector_;
    selected_.back()->schedule_ = static_cast<uint32_t>(selected_.size());
  }
}

std::shared_ptr<const LocalSite> LocalSite::With(uint32_t schedule) const {
  if (schedule == ScheduleSelector::kDefault) return shared_from_this();
  return selected_[schedule - 1];
}

Status LocalSite::SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) {
  std::call_once(once_, [&] {
    for (const auto& other : selected_) {
      status_ = other->SetLeaves(leaves, stats);
      if (!status_.ok()) return;
    }
    status_ = FindReduces(name_, kind_, reduction_, leaves, reduces_);
    if (!status_.ok()) return;
    layout_.emplace(leaves);
    for (const Op& op : program_->ops()) {
      work_ += (End(op) - Begin(op)) * static_cast<int64_t>(op.reads.size() + op.writes.size());
    }
    // A reduce-scatter's operand and an all-gather's result have a slice for each rank.
    const int64_t slices = kind_ == Kind::kAllReduce ? 1 : program_->ranks();
    streams_ = layout_->extent() * slices * program_->ranks() >= kStreamBytes;
    stats_ = stats.Site({name_, axes_, plan_, program_->ranks(), layout_->payload()});
    if (selector_) selector_->Try({stats_, &stats_->trial()});
  });
  return status_;
}

void LocalSite::Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) {
  executors.local().Arrive({run, 0}, shared_from_this(), rank, std::move(buffers), std::move(done));
}

void LocalSite::Forget(Executors& executors) const { executors.local().Forget(this); }

int64_t LocalSite::Begin(const Op& op) const {
  return kind_ == Kind::kAllReduce ? layout_->Bound(op.chunk, program_->chunks()) : 0;
}

int64_t LocalSite::End(const Op& op) const {
  return kind_ == Kind::kAllReduce ? layout_->Bound(op.chunk + 1, program_->chunks()) : layout_->extent();
}

}  // namespace jaxcomm

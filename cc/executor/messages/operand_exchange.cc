#include "cc/executor/messages/operand_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "cc/base/float_mode.h"
#include "cc/executor/messages/call_record.h"
#include "cc/executor/messages/result_pages.h"

namespace jaxcomm {

bool OperandExchange::Join(Transport& transport, const CallMatcher& calls) try {
  const MessageSite& site = *arriving_.site;
  const MessageSite::Exchanging& how = site.exchanging();
  if (!arriving_.refused.ok() || how.processes.empty() || how.is_transfer || !calls.IsUnknown(site, arriving_.id))
    return false;
  rank_ = static_cast<size_t>(std::find(group().begin(), group().end(), arriving_.rank) - group().begin());
  // Allocates before this rank joins, because Finish must not fail for lack of memory.
  arrivals_.resize(group().size());
  const bool adds = how.reads == ReadPattern::kAll && site.collective().kind != Kind::kAllGather;
  if (adds) sources_.resize(group().size());
  if (adds && how.in_place) scratch_ = site.scratch().Take(site.layout().extent());
  AdviseHugePages(site, arriving_.rank, arriving_.buffers);
  pending_ = transport.Join(
      {arriving_.id, how.processes, rank_, site.fingerprint(), Operands(), arriving_.at, how.in_place, how.reads});
  if (pending_ && site.collective().kind == Kind::kAllGather) {  // copies this rank's slice while others arrive
    const int64_t bytes = site.layout().payload();
    std::memcpy(arriving_.buffers.results[0] + static_cast<int64_t>(rank_) * bytes, arriving_.buffers.operands[0],
                static_cast<size_t>(bytes));
  }
  return pending_ != nullptr;
} catch (const std::bad_alloc&) {
  return false;
}

bool OperandExchange::Finish(CallMatcher& calls, const WaitLimits& limits) {
  const bool ended = pending_->Finish(limits, [this](const auto& all) { return Take(all); });
  if (ended && scratch_) {
    const XlaFloatMode mode;
    Add(0);
  }
  if (!ended && copied_ != nullptr) Restore();
  pending_ = nullptr;
  if (ended) Record(calls);
  return ended;
}

// Returns the bytes of this rank that the other ranks read.
std::vector<ConstSpan> OperandExchange::Operands() const {
  const MessageSite& site = *arriving_.site;
  std::vector<ConstSpan> spans;
  const int64_t slices = site.collective().kind == Kind::kReduceScatter ? static_cast<int64_t>(group().size()) : 1;
  for (size_t leaf = 0; leaf < arriving_.buffers.operands.size(); ++leaf) {
    spans.push_back({arriving_.buffers.operands[leaf], slices * site.layout().leaves()[leaf].bytes,
                     slices * site.layout().Start(leaf)});
  }
  return spans;
}

bool OperandExchange::Take(const std::vector<Exchanged>& operands) {
  for (size_t i = 0; i < operands.size(); ++i) arrivals_[i] = operands[i].at;
  const MessageSite& site = *arriving_.site;
  if (site.exchanging().reads == ReadPattern::kSpanPerReader) return CopyAll(operands);
  return site.collective().kind == Kind::kAllGather ? Gather(operands) : Reduce(operands);
}

// Copies the slices of an all-to-all.
bool OperandExchange::CopyAll(const std::vector<Exchanged>& slices) {
  for (size_t i = 1; i < slices.size(); ++i) {  // starts with the next rank, as Gather does
    const size_t from = (rank_ + i) % slices.size(), leaf = from - (from > rank_ ? 1 : 0);
    const int64_t bytes = arriving_.site->layout().leaves()[leaf].bytes;
    if (!slices[from].CopyTo(arriving_.buffers.results[leaf], 0, bytes)) return false;
  }
  return true;
}

bool OperandExchange::Gather(const std::vector<Exchanged>& operands) {
  const int64_t bytes = arriving_.site->layout().payload();
  // Starts with the next rank, so that ranks do not all read one rank's memory at once.
  for (size_t i = 1; i < operands.size(); ++i) {
    const size_t from = (rank_ + i) % operands.size();
    std::byte* const slice = arriving_.buffers.results[0] + static_cast<int64_t>(from) * bytes;
    if (!operands[from].CopyTo(slice, 0, bytes)) return false;
  }
  return true;
}

// Reduces the operands. With scratch_, only copies the other rank's operand, because the result may share memory with
// this rank's operand, which the other rank may still be reading. Finish then reduces the operands.
bool OperandExchange::Reduce(const std::vector<Exchanged>& operands) {
  const MessageSite& site = *arriving_.site;
  const bool scatters = site.collective().kind == Kind::kReduceScatter;
  const XlaFloatMode mode;
  for (size_t leaf = 0; leaf < arriving_.buffers.results.size(); ++leaf) {
    const int64_t bytes = site.layout().leaves()[leaf].bytes;
    const int64_t at = scatters ? site.layout().Start(leaf) * static_cast<int64_t>(operands.size()) +
                                      static_cast<int64_t>(rank_) * bytes
                                : site.layout().Start(leaf);
    for (size_t i = 0; i < operands.size(); ++i) {
      sources_[i] = operands[i].bytes + at;
      if (operands[i].reader == nullptr) continue;
      sources_[i] = scratch_.get();  // a group with scratch_ has two ranks, so only one operand is copied
      if (!operands[i].CopyTo(scratch_.get(), at, bytes)) return false;
    }
    if (scratch_) continue;
    copied_ = operands[rank_].bytes;
    Add(leaf);
  }
  return true;
}

// Restores this rank's operands, which a failed exchange may have overwritten with its sum.
void OperandExchange::Restore() {
  const Layout& layout = arriving_.site->layout();
  for (size_t leaf = 0; leaf < arriving_.buffers.results.size(); ++leaf) {
    std::byte* const result = arriving_.buffers.results[leaf];
    if (result != arriving_.buffers.operands[leaf]) continue;
    std::memcpy(result, copied_ + layout.Start(leaf), static_cast<size_t>(layout.leaves()[leaf].bytes));
  }
}

// Reduces a leaf in rank order, the order in which the call's list of messages also reduces.
void OperandExchange::Add(size_t leaf) {
  const SiteLeaves& leaves = arriving_.site->leaves();
  leaves.reduces()[leaf](sources_.data(), sources_.size(), &arriving_.buffers.results[leaf], 1, 1,
                         static_cast<size_t>(leaves.layout().leaves()[leaf].bytes));
}

void OperandExchange::Record(CallMatcher& calls) {
  const MessageSite& site = *arriving_.site;
  const int64_t number = calls.AddEnded(site, arriving_.id, group(), arriving_.at);
  // The clocks of a host's containers may differ, so the other ranks' arrival times are clamped to the possible range.
  const Clock::time_point now = Clock::now();
  for (Clock::time_point& at : arrivals_) at = std::clamp(at, std::min(arriving_.at - kLongestWait, now), now);
  site.stats().Record(RecordOf(arrivals_, arriving_.id, number));
}

}  // namespace jaxcomm

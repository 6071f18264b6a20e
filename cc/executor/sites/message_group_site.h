// A call site between processes, with groups that change from call to call. At each call, every rank passes a row that
// has the group number of every rank.
//
//   Result<std::shared_ptr<MessageGroupSite>> site = MessageGroupSite::Make(
//       {"group_sum", "data", "groups", "train.py:57"}, communicator, /*site=*/3, ranks, lists, registry, process);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());
//   site.value()->Arrive(executor, run, rank, buffers, done);   // returns at once
//
// A rank has the same number in the row and in every call. All ranks must pass the same row. If a rank passes a group
// number out of range, or if two rows differ, the call fails in all groups that have not completed the call. If two
// rows differ, the error names the two ranks and their rows. Each row has its own MessageSite, and the latest kKept of
// these sites are kept. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/calls/call_site.h"
#include "cc/executor/calls/group_numbers.h"
#include "cc/executor/sites/message_site.h"
#include "cc/program/message_registry.h"

namespace jaxcomm {

class MessageGroupSite : public CallSite {
 public:
  // The number of rows whose sites are kept. Plans of jaxcomm have 32 rows at most.
  static constexpr size_t kKept = 64;

  // `lists`: the names of the lists for groups of 2, 3, … ranks, up to all ranks. Fails if a list is missing, or if
  // MessageSite::Make fails.
  static Result<std::shared_ptr<MessageGroupSite>> Make(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                                        const std::vector<MessageRank>& ranks,
                                                        std::vector<std::string> lists, MessageRegistry& registry,
                                                        uint32_t process);

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override {
    return TakeRow(whole_->label().name, static_cast<uint32_t>(whole_->ranks().size()), leaves, buffers);
  }
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override {
    return whole_->SetLeaves(leaves, stats);
  }
  void Arrive(Executors& executors, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Refuse(Executors& executors, int64_t run, uint32_t rank, const Status& why) const override {
    whole_->Refuse(executors, run, rank, why);
  }
  void Forget(Executors& executors) const override { whole_->Forget(executors); }

 private:
  MessageGroupSite(MessageRegistry& registry, std::vector<std::string> lists)
      : registry_(registry), lists_(std::move(lists)) {}

  Result<std::shared_ptr<const MessageSite>> Regroup(const GroupNumbers& row);
  SiteRanks::Members WithList(std::vector<uint32_t> ranks) const;

  MessageRegistry& registry_;
  const std::vector<std::string> lists_;
  std::shared_ptr<MessageSite> whole_;  // the site with all ranks in one group

  std::mutex mutex_;
  BoundedMap<GroupNumbers, std::shared_ptr<const MessageSite>> regrouped_{kKept};
};

}  // namespace jaxcomm

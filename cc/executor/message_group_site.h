// A call site between processes whose groups change from call to call: every rank brings the row of all ranks' groups.
//
//   Result<std::shared_ptr<MessageGroupSite>> site = MessageGroupSite::Make(
//       {"group_sum", "data", "groups", "train.py:57"}, communicator, /*site=*/3, ranks, lists, registry, process);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());
//   site.value()->Arrive(executor, run, rank, buffers, done);   // returns at once
//
// Ranks have the same numbers in the row and in every call. All must bring the same row. If they do not, calls that
// lack a rank at that moment fail with an error that names both ranks and rows, likewise if a group is out of range; a
// group whose ranks agree may be done before. The calls of one row are those of a MessageSite; the latest are kept.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/call_site.h"
#include "cc/executor/executor.h"
#include "cc/executor/group_numbers.h"
#include "cc/executor/message_site.h"
#include "cc/program/message_registry.h"

namespace jaxcomm {

class MessageGroupSite : public CallSite {
 public:
  // The divisions that are kept; plans of jaxcomm have 32 at most.
  static constexpr size_t kKept = 64;

  // `lists`: names of the lists for groups of 2, 3, … ranks, up to all. Errors as of a MessageSite.
  static Result<std::shared_ptr<MessageGroupSite>> Make(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                                        const std::vector<MessageGroup::Rank>& ranks,
                                                        std::vector<std::string> lists, MessageRegistry& registry,
                                                        uint32_t process);

  Status TakeLeading(std::vector<Leaf>& leaves, Buffers& buffers) const override {
    return TakeRow(whole_->label().name, static_cast<uint32_t>(whole_->ranks().size()), leaves, buffers);
  }
  Status SetLeaves(const std::vector<Leaf>& leaves, CallSiteStats& stats) override {
    return whole_->SetLeaves(leaves, stats);
  }
  void Arrive(Executor& executor, int64_t run, uint32_t rank, Buffers buffers, Done done) override;
  void Refuse(Executor& executor, int64_t run, uint32_t rank, const Status& why) const override {
    whole_->Refuse(executor, run, rank, why);
  }
  void Forget(Executor& executor) const override { whole_->Forget(executor); }

 private:
  MessageGroupSite(MessageRegistry& registry, std::vector<std::string> lists)
      : registry_(registry), lists_(std::move(lists)) {}

  Result<std::shared_ptr<const MessageSite>> Regroup(const GroupNumbers& row);
  MessageSite::Members WithList(std::vector<uint32_t> ranks) const;

  MessageRegistry& registry_;
  const std::vector<std::string> lists_;
  std::shared_ptr<MessageSite> whole_;  // all ranks are one group

  std::mutex mutex_;
  BoundedMap<GroupNumbers, std::shared_ptr<const MessageSite>> regrouped_{kKept};
};

}  // namespace jaxcomm

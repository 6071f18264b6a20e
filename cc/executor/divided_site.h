// A call site between processes whose groups change from call to call: every rank brings the row that says in which
// group each rank is.
//
//   Result<std::shared_ptr<DividedSite>> site = DividedSite::Make(
//       {"group_sum", "data", "groups", "train.py:57"}, communicator, /*site=*/3, ranks, lists, registry, process);
//   Status status = site.value()->SetLeaves(leaves, executor.stats());
//   site.value()->Arrive(executor, run, rank, {0, 1, 0, 1}, buffers, done);   // returns at once
//
// Ranks count as they do in the row, in every call. All must bring the same row. Where one does not, calls that lack a
// rank by then fail with an error that says who brought what, as they do where a group is out of range; a group all of
// whose ranks agree may be done before. The calls of one row are those of a MessageSite, of which the latest are kept.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/executor.h"
#include "cc/executor/group_row.h"
#include "cc/executor/message_site.h"
#include "cc/program/message_registry.h"

namespace jaxcomm {

class DividedSite {
 public:
  // Divisions that are kept; a plan made here has 32.
  static constexpr size_t kKept = 64;

  // `lists`: names of the lists for groups of 2, 3, … ranks, as many as there are. Errors as of a MessageSite.
  static Result<std::shared_ptr<DividedSite>> Make(MessageSite::Label label, uint64_t communicator, uint32_t site,
                                                   const std::vector<MessageGroup::Rank>& ranks,
                                                   std::vector<std::string> lists, MessageRegistry& registry,
                                                   uint32_t process);

  Status SetLeaves(const std::vector<Leaf>& leaves, Stats& stats) { return whole_->SetLeaves(leaves, stats); }

  void Arrive(Executor& executor, int64_t run, uint32_t rank, const GroupRow& row, Buffers buffers, Done done);

  // The call site is gone, see Executor.
  void Forget(Executor& executor) const { executor.Forget(whole_.get()); }

  // All ranks in one group.
  const MessageSite& whole() const { return *whole_; }
  const std::string& name() const { return whole_->label().name; }
  size_t ranks() const { return whole_->ranks().size(); }

 private:
  DividedSite(MessageRegistry& registry, std::vector<std::string> lists)
      : registry_(registry), lists_(std::move(lists)) {}

  Result<std::shared_ptr<const MessageSite>> Divide(const GroupRow& row);
  MessageSite::Members WithList(std::vector<uint32_t> ranks) const;

  MessageRegistry& registry_;
  const std::vector<std::string> lists_;
  std::shared_ptr<MessageSite> whole_;  // all ranks are one group

  std::mutex mutex_;
  BoundedMap<GroupRow, std::shared_ptr<const MessageSite>> divisions_{kKept};
};

}  // namespace jaxcomm

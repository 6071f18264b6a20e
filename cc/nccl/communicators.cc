#include "cc/nccl/communicators.h"

#include <algorithm>
#include <utility>

#include "cc/base/text.h"

namespace jaxcomm::nccl {
namespace {

bool Begun(Outcome outcome) { return outcome == kSuccess || outcome == kInProgress; }

Config WithoutBlocking(const char* module) {
  Config config;
  config.blocking = 0;
  config.net_name = module;
  return config;
}

}  // namespace

Communicators::Communicators(const Library& nccl, Membership membership, Board* board)
    : Carrier(nccl, membership.rank, membership.ranks), membership_(std::move(membership)), board_(board) {
  if (board != nullptr) board->Arrive(membership_.rank, {0, 0});
}

Result<std::unique_ptr<Communicators>> Communicators::Create(const Library& nccl, Membership membership, Board* board,
                                                             Clock::time_point deadline) {
  if (membership.rank >= membership.ranks || membership.rails.empty()) {
    return InvalidArgument("communicators: rank " + std::to_string(membership.rank) + " of " +
                           std::to_string(membership.ranks) + " on " + std::to_string(membership.rails.size()) +
                           " rails; a rank below their number and one rail are needed");
  }
  for (size_t i = 0; i < membership.partitions.size(); ++i) {
    if (membership.partitions[i].size() == membership.ranks) continue;
    return InvalidArgument("communicators: partition " + std::to_string(i) + " names the groups of " +
                           std::to_string(membership.partitions[i].size()) + " ranks, not of " +
                           std::to_string(membership.ranks));
  }
  std::unique_ptr<Communicators> made(new Communicators(nccl, std::move(membership), board));
  if (Status status = made->Make(deadline); !status.ok()) return status;
  return made;
}

Status Communicators::Make(Clock::time_point deadline) {
  const int rank = static_cast<int>(membership_.rank), ranks = static_cast<int>(membership_.ranks);
  for (const RailId& id : membership_.rails) {
    const bool named = !id.module.empty();
    const std::string name = "rail " + (named ? "'" + id.module + "'" : std::to_string(rails_.size()));
    Named& rail = rails_.emplace_back(Named{name, named ? id.module.c_str() : nullptr});
    Config config = WithoutBlocking(rail.module);
    const Outcome begun = nccl_.CommInitRankConfig(&rail.comm, ranks, id.id, rank, &config);
    if (!Begun(begun)) return nccl_.Error(Self() + "joining " + rail.name, begun, rail.comm);
    if (Status status = Settled("joining " + rail.name, rail.comm, deadline); !status.ok()) return status;
  }
  for (const std::vector<uint32_t>& partition : membership_.partitions) {
    if (Status status = MakeGroup(partition, deadline); !status.ok()) return status;
  }
  return Status();
}

Status Communicators::MakeGroup(const std::vector<uint32_t>& partition, Clock::time_point deadline) {
  const int colour = static_cast<int>(partition[membership_.rank]);
  const Named& rail = rails_.front();
  const std::string name = "group " + std::to_string(colour) + " of iteration " + std::to_string(groups_.size());
  Named& group = groups_.emplace_back(Named{name, rail.module});
  Config config = WithoutBlocking(rail.module);
  const Outcome begun = nccl_.CommSplit(rail.comm, colour, static_cast<int>(membership_.rank), &group.comm, &config);
  return Born("joining " + name, begun, rail.comm, group, deadline);
}

// Waits for a communicator that NCCL makes from another: its handle is there when the parent has settled.
Status Communicators::Born(const std::string& what, Outcome begun, Comm parent, const Named& child,
                           Clock::time_point deadline) {
  if (!Begun(begun)) return nccl_.Error(Self() + what, begun, parent);
  if (Status status = Settled(what, parent, deadline); !status.ok()) return status;
  if (child.comm == nullptr) return Status(Code::kInternal, Self() + what + ": NCCL gave no communicator");
  return Settled(what, child.comm, deadline);
}

Communicators::~Communicators() {
  std::lock_guard<std::mutex> lock(mutex_);
  Abort();
}

Status Communicators::Settled(const std::string& what, Comm comm, Clock::time_point deadline) const {
  std::string late = "not all of the " + std::to_string(membership_.ranks) + " ranks have come";
  if (board_ != nullptr) {
    late += " (of this host: " + JoinRanks(board_->Here({0, 0}, everybody())) + ")";
  }
  return Settle(nccl_, comm, Self() + what, late, deadline);
}

std::vector<uint32_t> Communicators::members(size_t partition) const {
  const std::vector<uint32_t>& groups = membership_.partitions[partition];
  std::vector<uint32_t> found;
  for (uint32_t rank = 0; rank < membership_.ranks; ++rank) {
    if (groups[rank] == groups[membership_.rank]) found.push_back(rank);
  }
  return found;
}

Result<std::unique_ptr<Communicators>> Communicators::Without(const std::vector<uint32_t>& gone, Board* board,
                                                              Clock::time_point deadline) {
  if (nccl_.CommRevoke == nullptr || nccl_.CommShrink == nullptr) {
    return Status(Code::kUnimplemented, "libnccl " + nccl_.VersionText() +
                                            " cannot leave ranks out (it has no ncclCommRevoke).\n"
                                            "  Cure: start the job anew without them.");
  }
  std::vector<int> without(gone.begin(), gone.end());
  const auto is_gone = [&](uint32_t rank) { return std::find(gone.begin(), gone.end(), rank) != gone.end(); };
  Membership left{0, 0, membership_.rails, {}};
  for (uint32_t rank = 0; rank < membership_.ranks; ++rank) {
    if (is_gone(rank)) continue;
    if (rank == membership_.rank) left.rank = left.ranks;
    ++left.ranks;
  }
  if (gone.empty() || is_gone(membership_.rank) || left.ranks + gone.size() != membership_.ranks) {
    return InvalidArgument("communicators: ranks " + JoinRanks(gone) + " of " + std::to_string(membership_.ranks) +
                           " cannot go: they must be distinct, at least one, and not rank " +
                           std::to_string(membership_.rank) + " itself");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) Revoke();
  failure_ = Status(Code::kInternal, Self() + "the ranks have left these communicators for new ones");
  std::unique_ptr<Communicators> made(new Communicators(nccl_, std::move(left), board));
  Status status;
  for (const Named& rail : rails_) {
    if (rail.comm == nullptr) status = Status(Code::kInternal, Self() + rail.name + " could not be revoked");
    if (status.ok()) status = Settled("revoking " + rail.name, rail.comm, deadline);
    if (!status.ok()) break;
    Named& child = made->rails_.emplace_back(Named{rail.name, rail.module});
    Config config = WithoutBlocking(rail.module);
    const Outcome begun = nccl_.CommShrink(rail.comm, without.data(), static_cast<int>(without.size()), &child.comm,
                                           &config, kShrinkDefault);
    status = made->Born("shrinking " + rail.name, begun, rail.comm, child, deadline);
    if (!status.ok()) break;
  }
  Abort();  // the parents first, which may still be making children
  if (!status.ok()) return status;
  return made;
}

Status Communicators::FirstError() {
  for (const auto* named : {&rails_, &groups_}) {
    for (const Named& each : *named) {
      Outcome outcome = kSuccess;
      const Outcome asked = nccl_.CommGetAsyncError(each.comm, &outcome);
      if (asked != kSuccess) outcome = asked;
      if (!Begun(outcome)) return nccl_.Error(Self() + each.name, outcome, each.comm);
    }
  }
  return Status();
}

Status Communicators::Stop(Status fault) {
  Revoke();
  return fault;
}

// Ends whatever runs. Rails are revoked, so that others can be made from them, or aborted where NCCL cannot.
void Communicators::Revoke() {
  for (Named& rail : rails_) {
    if (nccl_.CommRevoke != nullptr && Begun(nccl_.CommRevoke(rail.comm, 0))) continue;
    nccl_.CommAbort(std::exchange(rail.comm, nullptr));
  }
  for (Named& group : groups_) nccl_.CommAbort(group.comm);
  groups_.clear();
}

// The rails first: a group that is still being made ends with its rail, and only then is its handle known.
void Communicators::Abort() {
  for (auto* named : {&rails_, &groups_}) {
    for (const Named& each : *named) {
      if (each.comm != nullptr) nccl_.CommAbort(each.comm);
    }
    named->clear();
  }
}

std::string Communicators::Self() const {
  return "NCCL, rank " + std::to_string(membership_.rank) + " of " + std::to_string(membership_.ranks) + ": ";
}

}  // namespace jaxcomm::nccl

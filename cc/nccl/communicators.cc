#include "cc/nccl/communicators.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace jaxcomm::nccl {
namespace {

constexpr std::chrono::microseconds kPause(200);  // between looks at what goes on

std::string Seconds(Clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

std::string Join(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

}  // namespace

Status Settle(const Library& nccl, Comm comm, const std::string& what, const std::string& late,
              Clock::time_point deadline) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    Outcome outcome = kInProgress;
    const Outcome asked = nccl.CommGetAsyncError(comm, &outcome);
    if (asked != kSuccess) return nccl.Error(what, asked, comm);
    if (outcome == kSuccess) return Status();
    if (outcome != kInProgress) return nccl.Error(what, outcome, comm);
    if (Clock::now() >= deadline) {
      const std::string waited = " after " + Seconds(Clock::now() - start) + ".";
      return Status(Code::kDeadlineExceeded, "DeadlineError: " + what + ": " + late + waited);
    }
    std::this_thread::sleep_for(kPause);
  }
}

Communicators::Communicators(const Library& nccl, Membership membership)
    : nccl_(nccl), membership_(std::move(membership)) {}

Result<std::unique_ptr<Communicators>> Communicators::Create(const Library& nccl, Membership membership,
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
  std::unique_ptr<Communicators> made(new Communicators(nccl, std::move(membership)));
  if (Status status = made->Make(deadline); !status.ok()) {
    made->failure_ = status;
    return status;
  }
  return made;
}

Status Communicators::Make(Clock::time_point deadline) {
  const int rank = static_cast<int>(membership_.rank);
  for (const RailId& rail : membership_.rails) {
    Config config;
    config.blocking = 0;
    if (!rail.module.empty()) config.net_name = rail.module.c_str();
    const std::string name = "rail " + (rail.module.empty() ? std::to_string(rails_.size()) : "'" + rail.module + "'");
    Comm comm = nullptr;
    const Outcome begun = nccl_.CommInitRankConfig(&comm, static_cast<int>(membership_.ranks), rail.id, rank, &config);
    if (comm != nullptr) rails_.push_back({name, comm});
    if (begun != kSuccess && begun != kInProgress) return nccl_.Error(Self() + "joining " + name, begun, comm);
    if (Status status = Settled("joining " + name, comm, deadline); !status.ok()) return status;
  }
  for (const std::vector<uint32_t>& partition : membership_.partitions) {
    const uint32_t colour = partition[membership_.rank];
    const std::string name = "group " + std::to_string(colour) + " of iteration " + std::to_string(groups_.size());
    Config config;
    config.blocking = 0;
    Comm comm = nullptr;
    const Outcome begun = nccl_.CommSplit(rails_[0].comm, static_cast<int>(colour), rank, &comm, &config);
    if (comm != nullptr) groups_.push_back({name, comm});
    if (begun != kSuccess && begun != kInProgress) return nccl_.Error(Self() + "joining " + name, begun, comm);
    // The child is not ready before the parent is.
    for (const Comm each : {rails_[0].comm, comm}) {
      if (Status status = Settled("joining " + name, each, deadline); !status.ok()) return status;
    }
  }
  return Status();
}

Communicators::~Communicators() {
  std::lock_guard<std::mutex> lock(mutex_);
  Abort();
}

Status Communicators::Settled(const std::string& what, Comm comm, Clock::time_point deadline) const {
  const std::string late = "not all of the " + std::to_string(membership_.ranks) + " ranks have come";
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

Status Communicators::Fail(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  Abort();
  return failure_;
}

Status Communicators::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  failure_ = FirstError();
  if (!failure_.ok()) Abort();
  return failure_;
}

Status Communicators::Await(const std::string& what, const std::function<bool()>& done, Clock::time_point start,
                            Clock::time_point deadline, const Missing& missing) {
  for (;;) {
    if (done()) return Status();
    if (Status status = Check(); !status.ok()) return Status(status.code(), what + ": " + status.message());
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPause);
  }
  std::string who = ": not all of the " + std::to_string(membership_.ranks) + " ranks have finished after ";
  if (const std::vector<uint32_t> absent = missing(); !absent.empty()) {
    who = ": rank" + std::string(absent.size() > 1 ? "s " : " ") + Join(absent) + " of " +
          std::to_string(membership_.ranks) + (absent.size() > 1 ? " have" : " has") + " not arrived after ";
  }
  return Fail(Status(Code::kDeadlineExceeded, "DeadlineError: " + what + who + Seconds(Clock::now() - start) +
                                                  "; rank " + std::to_string(membership_.rank) + " waits."));
}

Result<std::unique_ptr<Communicators>> Communicators::Without(const std::vector<uint32_t>& gone,
                                                              Clock::time_point deadline) {
  if (nccl_.CommShrink == nullptr) {
    return Status(Code::kUnimplemented, "libnccl " + nccl_.VersionText() +
                                            " cannot leave ranks out (it has no ncclCommShrink).\n"
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
  if (is_gone(membership_.rank) || left.ranks + gone.size() != membership_.ranks) {
    return InvalidArgument("communicators: ranks " + Join(gone) + " of " + std::to_string(membership_.ranks) +
                           " cannot go: they must be distinct, and not rank " + std::to_string(membership_.rank) +
                           " itself");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Communicators> made(new Communicators(nccl_, std::move(left)));
  Status failed;
  for (Named& rail : rails_) {
    if (nccl_.CommRevoke != nullptr) {
      const Outcome revoked = nccl_.CommRevoke(rail.comm, 0);
      if (revoked != kSuccess && revoked != kInProgress) {
        failed = nccl_.Error(Self() + "revoking " + rail.name, revoked, rail.comm);
      } else {
        failed = Settled("revoking " + rail.name, rail.comm, deadline);
      }
      if (!failed.ok()) break;
    }
    Config config;
    config.blocking = 0;
    Comm comm = nullptr;
    const int flags = nccl_.CommRevoke != nullptr ? 0 : kShrinkAbort;
    const Outcome begun =
        nccl_.CommShrink(rail.comm, without.data(), static_cast<int>(without.size()), &comm, &config, flags);
    if (comm != nullptr) made->rails_.push_back({rail.name, comm});
    failed = begun != kSuccess && begun != kInProgress ? nccl_.Error(Self() + "shrinking " + rail.name, begun, comm)
                                                       : Settled("shrinking " + rail.name, comm, deadline);
    if (!failed.ok()) break;
  }
  failure_ = Status(Code::kInternal, Self() + "the ranks have left these communicators for new ones");
  Abort();
  if (failed.ok()) return made;
  made->failure_ = failed;
  return failed;
}

Status Communicators::FirstError() {
  for (const auto* named : {&rails_, &groups_}) {
    for (const Named& each : *named) {
      Outcome outcome = kSuccess;
      const Outcome asked = nccl_.CommGetAsyncError(each.comm, &outcome);
      if (asked != kSuccess) outcome = asked;
      if (outcome != kSuccess && outcome != kInProgress) return nccl_.Error(Self() + each.name, outcome, each.comm);
    }
  }
  return Status();
}

void Communicators::Abort() {
  for (auto* named : {&groups_, &rails_}) {
    for (auto each = named->rbegin(); each != named->rend(); ++each) nccl_.CommAbort(each->comm);
    named->clear();
  }
}

std::string Communicators::Self() const {
  return "NCCL, rank " + std::to_string(membership_.rank) + " of " + std::to_string(membership_.ranks) + ": ";
}

}  // namespace jaxcomm::nccl

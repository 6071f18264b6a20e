#include "cc/gpu/nccl/communicator.h"

#include <utility>

#include "cc/base/text.h"

namespace jaxcomm::nccl {
namespace {

bool Begun(Outcome outcome) { return outcome == kSuccess || outcome == kInProgress; }

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::Create(const Library& nccl, const GroupRank& joining,
                                                           ArrivalTable* arrivals, Clock::time_point deadline) {
  if (joining.rank >= joining.ranks) {
    return InvalidArgument("a communicator of " + std::to_string(joining.ranks) + " ranks has no rank " +
                           std::to_string(joining.rank));
  }
  if (arrivals != nullptr) arrivals->Arrive(joining.rank, 0);
  std::unique_ptr<Communicator> made(new Communicator(nccl, joining));
  const std::string operation = made->Self() + "joining";
  Config config;
  config.blocking = 0;
  const Outcome begun = nccl.CommInitRankConfig(&made->comm_, static_cast<int>(joining.ranks), joining.id,
                                                static_cast<int>(joining.rank), &config);
  if (!Begun(begun)) return nccl.Error(operation, begun, made->comm_);
  // Who of this host is here is asked when it matters: at the deadline.
  Status status = AwaitCommunicator(nccl, made->comm_, operation, deadline, [&] {
    const std::string late = "not all of the " + std::to_string(joining.ranks) + " ranks have come";
    return arrivals == nullptr ? late : late + " (of this host: " + JoinRanks(arrivals->Here(0)) + ")";
  });
  if (!status.ok()) return status;
  return made;
}

Communicator::~Communicator() {
  std::lock_guard<std::mutex> lock(mutex_);
  Abort();
}

Status Communicator::Fail(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) {
    failure_ = std::move(status);
    Abort();
  }
  return failure_;
}

Status Communicator::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) {
    failure_ = FirstError();
    if (!failure_.ok()) Abort();
  }
  return failure_;
}

Status Communicator::Await(const ArrivalReport& report, const std::function<bool()>& done, Clock::time_point start,
                           Clock::time_point deadline) {
  for (Pause pause;; pause.Wait()) {
    if (done()) return Status();
    if (Status status = Check(); !status.ok()) return report.Lost(status);
    if (Clock::now() >= deadline) return Fail(report.Late(Clock::now() - start));
  }
}

Status Communicator::FirstError() const {
  Outcome outcome = kSuccess;
  const Outcome asked = nccl_.CommGetAsyncError(comm_, &outcome);
  if (asked != kSuccess) outcome = asked;
  return Begun(outcome) ? Status() : nccl_.Error(Self() + "calls", outcome, comm_);
}

void Communicator::Abort() {
  if (comm_ != nullptr) nccl_.CommAbort(std::exchange(comm_, nullptr));
}

std::string Communicator::Self() const {
  return "NCCL, rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) + ": ";
}

}  // namespace jaxcomm::nccl

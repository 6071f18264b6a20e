#include "cc/nccl/loan.h"

#include <string>

#include "cc/base/text.h"

namespace jaxcomm::nccl {

Status Loan::Take(Comm comm) {
  int count = 0;
  const Outcome asked = nccl_.CommCount(comm, &count);
  if (asked != kSuccess) return nccl_.Error("a communicator that XLA lends", asked, nullptr);
  if (count != static_cast<int>(ranks())) {
    return Status(Code::kInternal, "XLA lends a communicator of " + std::to_string(count) + " ranks; the group has " +
                                       std::to_string(ranks()));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  comm_ = comm;
  return Status();
}

Status Loan::Learn(const std::vector<uint32_t>& told) {
  constexpr uint32_t kNowhere = UINT32_MAX;
  std::vector<uint32_t> places(ranks(), kNowhere);
  for (uint32_t place = 0; place < told.size(); ++place) {
    if (told[place] < ranks()) places[told[place]] = place;
  }
  int mine = 0;
  const Outcome asked = nccl_.CommUserRank(comm_, &mine);
  if (asked != kSuccess) return nccl_.Error("a communicator that XLA lends", asked, nullptr);
  bool all = places[rank()] == static_cast<uint32_t>(mine);
  for (const uint32_t place : places) all = all && place != kNowhere;
  if (!all) {
    return Status(Code::kInternal, "in XLA's communicator, where this is place " + std::to_string(mine) +
                                       ", the places say that they are of ranks " + JoinRanks(told) +
                                       "; this is rank " + std::to_string(rank()) + " of " + std::to_string(ranks()));
  }
  places_[comm_] = std::move(places);
  return Status();
}

Status Loan::FirstError() {
  if (comm_ == nullptr) return Status();
  Outcome outcome = kSuccess;
  const Outcome asked = nccl_.CommGetAsyncError(comm_, &outcome);
  if (asked != kSuccess) outcome = asked;
  if (outcome == kSuccess || outcome == kInProgress) return Status();
  return nccl_.Error("NCCL, rank " + std::to_string(rank()) + " of " + std::to_string(ranks()), outcome, comm_);
}

Status Loan::Stop(Status fault) {
  return Status(fault.code(), fault.message() +
                                  "\n  Cure: end this process. XLA owns the communicator, so jaxcomm does not stop it, "
                                  "and NCCL's kernel may wait on the GPU for ever.");
}

}  // namespace jaxcomm::nccl

// A rank's part in a communicator that XLA owns and lends for the time of a call.
//
//   Loan loan(nccl, rank, ranks);
//   Status status = loan.Take(comm);                  // for each call, what XLA lends for it
//   if (loan.places().empty()) ...                    // the ranks tell each other, and then loan.Learn(ranks by place)
//   NcclWire wire(nccl, comm, &loan.places(), ...);
//
// XLA numbers a communicator's ranks by rules of its own. And it alone may end a communicator: after a fault NCCL's
// kernel may wait on the GPU for as long as the process lives. Thread-safe for Check, Fail and Await alone.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/carrier.h"

namespace jaxcomm::nccl {

class Loan : public Carrier {
 public:
  using Carrier::Carrier;

  // An error: it has not as many ranks as the group.
  Status Take(Comm comm);

  // Of the communicator that was taken last, by rank: its place in it. Empty before the ranks have told each other.
  const std::vector<uint32_t>& places() { return places_[comm_]; }

  // What they have told each other: the rank of each place.
  Status Learn(const std::vector<uint32_t>& ranks);

 protected:
  Status FirstError() override;
  Status Stop(Status fault) override;

 private:
  std::map<Comm, std::vector<uint32_t>> places_;
  Comm comm_ = nullptr;
};

}  // namespace jaxcomm::nccl

// Moves the operand of one rank to the only other rank of its call without messages, if both are on one host
// (transfers.h).
//
//   OperandTransfer transfer(arriving);   // `arriving` must outlive the transfer
//   if (transfer.Join(transport, calls) && transfer.Finish(calls, limits)) return arriving.done(Status());
//   …                                     // otherwise the call continues with messages
#pragma once

#include <memory>

#include "cc/executor/messages/arriving_rank.h"
#include "cc/executor/messages/call_matcher.h"
#include "cc/transport/transfers.h"

namespace jaxcomm {

class OperandTransfer {
 public:
  explicit OperandTransfer(const ArrivingRank& arriving) : arriving_(arriving) {}

  // Offers the sender's operand. Does not wait. Returns false if the call must use messages.
  bool Join(Transport& transport, const CallMatcher& calls);
  // Returns whether this rank's part of the call is complete. The sender's may be complete before the receiver arrives.
  bool Finish(CallMatcher& calls, const ExchangeLimits& limits);

 private:
  TransferPart Part() const { return {arriving_.id, arriving_.site->fingerprint(), arriving_.at}; }

  const ArrivingRank& arriving_;
  bool is_sender_ = false;
  Transfers* transfers_ = nullptr;
  std::unique_ptr<OfferedBytes> offered_;  // null on the receiver
};

}  // namespace jaxcomm

// Moves the operand of one rank to the only other rank of its call without messages, if both are on one host
// (transfers.h).
//
//   OperandTransfer transfer(arriving);   // of a site with exchanging().is_transfer; `arriving` must outlive it
//   if (transfer.Join(transport, calls) && transfer.Finish(calls, limits)) {
//     arriving.done(Status());
//     transfer.Record(calls);
//   } else …                              // the call continues with messages
#pragma once

#include <memory>
#include <optional>
#include <vector>

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
  bool Finish(const CallMatcher& calls, const WaitLimits& limits);
  // Records a complete part. Returns the arrivals of a receiver with another call.
  std::vector<PeerArrival> Record(CallMatcher& calls) const;

 private:
  TransferPart Part() const { return {arriving_.id, arriving_.site->fingerprint(), arriving_.at}; }

  const ArrivingRank& arriving_;
  bool is_sender_ = false;
  Transport* transport_ = nullptr;
  Transfers* transfers_ = nullptr;
  std::unique_ptr<OfferedBytes> offered_;       // null on the receiver
  std::optional<Clock::time_point> sender_at_;  // known to the receiver after Finish
};

}  // namespace jaxcomm

// Completes a call without messages, if its ranks are on one host and arrive together. Each rank reads the other ranks'
// operands.
//
//   OperandExchange exchange(arriving);   // `arriving` must outlive the exchange
//   if (exchange.Join(transport, calls) && exchange.Finish(calls, limits)) return arriving.done(Status());
//   …                                     // otherwise the call continues with messages, on all its ranks
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "cc/executor/messages/arriving_rank.h"
#include "cc/executor/messages/call_matcher.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class OperandExchange {
 public:
  // The longest time to wait for ranks that have not arrived.
  static constexpr std::chrono::milliseconds kLongestWait{20};

  explicit OperandExchange(const ArrivingRank& arriving) : arriving_(arriving) {}

  // Offers the rank's operands to the other ranks. Returns false if the call does not allow an exchange.
  bool Join(Transport& transport, const CallMatcher& calls);
  // Returns whether the exchange has completed the call. limits.arrivals: at most kLongestWait.
  bool Finish(CallMatcher& calls, const WaitLimits& limits);

 private:
  const std::vector<uint32_t>& group() const { return arriving_.site->ranks().GroupOf(arriving_.rank); }
  std::vector<ConstSpan> Operands() const;
  bool Take(const std::vector<Exchanged>& operands);
  bool Gather(const std::vector<Exchanged>& operands);
  bool CopyAll(const std::vector<Exchanged>& slices);
  bool Reduce(const std::vector<Exchanged>& operands);
  void Add(size_t leaf);
  void Restore();
  void Record(CallMatcher& calls);

  const ArrivingRank& arriving_;
  size_t rank_ = 0;  // the place of this rank in its group
  std::unique_ptr<PendingExchange> pending_;
  std::shared_ptr<std::byte> scratch_;       // holds a copy of an operand that only Exchanged::reader can read
  const std::byte* copied_ = nullptr;        // the exchange's copy of this rank's operands; null before the first sum
  std::vector<Clock::time_point> arrivals_;  // by rank
  std::vector<const std::byte*> sources_;    // by rank
};

}  // namespace jaxcomm

// Completes a small call of ranks on one host without messages, if the ranks arrive together: each rank reads the
// operands of the other ranks.
#pragma once

#include "cc/executor/messages/arriving_rank.h"
#include "cc/executor/messages/call_matcher.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Returns whether the exchange has completed the call. If not, the call continues with messages on all its ranks. With
// `may_wait`, waits up to a millisecond for the other ranks. `yields`: as in Transport::TryExchange.
bool ExchangeOperands(Transport& transport, CallMatcher& calls, const ArrivingRank& arriving, bool may_wait,
                      bool yields);

}  // namespace jaxcomm

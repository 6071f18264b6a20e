// A transport that can be one of several rails to the same processes (rails/rails.h).
//
//   rail.OnEarly([](uint32_t process, const MessageId& id, int64_t bytes) { ... });   // call before adding processes
//   rail.Withdraw(process, id);                      // the message has arrived on another rail
//   SendProgress progress = rail.ProgressTo(process);
//   rail.Fence(process, why);                        // the process may be connected again
#pragma once

#include <cstdint>
#include <functional>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The progress of the packets sent to a process, measured by the acknowledgements of the process's host.
struct SendProgress {
  uint64_t confirmed = 0;   // grows when packets are acknowledged
  uint32_t unanswered = 0;  // packets that the host had room for but has not acknowledged
  bool repeats = false;     // some packets were lost and retransmitted, while others arrived
};

class RailTransport : public Transport {
 public:
  using Early = std::function<void(uint32_t process, const MessageId& id, int64_t bytes)>;

  // `early` runs as a callback when a lossless message of more than kMaxSmall bytes arrives before its Post.
  virtual void OnEarly(Early early) = 0;
  // Forgets the Post of a message unless the message has begun to arrive.
  virtual void Withdraw(uint32_t process, const MessageId& id) = 0;
  // Ends the connection with the process at once and without a goodbye. After Fence returns, no byte from the process
  // is read or stored. Early messages from the process are dropped, and no event reports the end of the connection.
  // Callbacks and events that were due before the fence may still run. The process may be connected again.
  virtual void Fence(uint32_t process, const Status& why) = 0;
  virtual SendProgress ProgressTo(uint32_t process) = 0;
};

}  // namespace jaxcomm

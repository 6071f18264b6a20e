// A transport that can be one of several rails to the same processes (rails/rails.h).
//
//   rail.OnEarly([](uint32_t process, const MessageId& id, int64_t bytes) { ... });   // before processes are added
//   rail.Withdraw(process, id);                      // another rail has brought the message
//   SendProgress progress = rail.ProgressTo(process);
//   rail.Fence(process, why);                        // the process may be connected again
#pragma once

#include <cstdint>
#include <functional>

#include "cc/base/status.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The progress of the packets sent to a process, by its host's answers.
struct SendProgress {
  uint64_t confirmed = 0;   // grows with each answer that confirms packets
  uint32_t unanswered = 0;  // packets that the host could take and has not confirmed
  bool repeats = false;     // some were lost, others came, and the lost ones have been sent again
};

class RailTransport : public Transport {
 public:
  using Early = std::function<void(uint32_t process, const MessageId& id, int64_t bytes)>;

  // `early` runs as callbacks do, when a message of more than kMaxSmall bytes, of which no part may be lost, comes
  // before its Post.
  virtual void OnEarly(Early early) = 0;
  // Forgets the Post of a message whose bytes have not begun to come.
  virtual void Withdraw(uint32_t process, const MessageId& id) = 0;
  // Ends the connection with the process on this side, at once and without notice to the other side. Once this returns,
  // no byte from the process is read or stored any more; its early messages are dropped, and no event reports its end.
  // Callbacks and notices that were due may still run. The process may be connected again.
  virtual void Fence(uint32_t process, const Status& why) = 0;
  virtual SendProgress ProgressTo(uint32_t process) = 0;
};

}  // namespace jaxcomm

// The interface through which call sites between processes pass their calls to the message executor.
#pragma once

#include <cstdint>
#include <memory>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/threads/completion.h"

namespace jaxcomm {

class MessageSite;

class MessageCalls {
 public:
  // Makes a rank of this process join its next call at the site. Returns at once. `run`: XLA's number of the launch. If
  // `refused` is an error, the call fails with this error on all its ranks.
  virtual void Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers,
                      Done done, const Status& refused = Status()) = 0;
  // Fails the call that the rank cannot join. The call's other ranks get the error `why`; this rank gets no callback.
  // Does nothing while the processes are not connected, because a launch outside of a job must not be counted.
  virtual void Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) = 0;
  // Drops the site's failed calls, which were kept so that late ranks get the error.
  virtual void Forget(const MessageSite* site) = 0;

 protected:
  ~MessageCalls() = default;
};

}  // namespace jaxcomm

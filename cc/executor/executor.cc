#include "cc/executor/executor.h"

namespace jaxcomm {

void Executor::Delay(Clock::duration delay, Done done) {
  if (!threads_.Start()) return done(CallThreads::NoThread("delay"));
  threads_.timer().After(delay, [this, done = std::move(done)] { threads_.CallBack("delay", {0, done, Status()}); });
}

}  // namespace jaxcomm

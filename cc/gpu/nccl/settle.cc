#include "cc/gpu/nccl/settle.h"

#include <thread>

#include "cc/base/text.h"

namespace jaxcomm::nccl {

void Pause::Wait() {
  if (Clock::now() - start_ < std::chrono::milliseconds(1)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Status Settle(const Library& nccl, Comm comm, const std::string& what, Clock::time_point deadline,
              const std::function<std::string()>& late) {
  const Clock::time_point start = Clock::now();
  for (Pause pause;; pause.Wait()) {
    Outcome outcome = kInProgress;
    const Outcome asked = nccl.CommGetAsyncError(comm, &outcome);
    if (asked != kSuccess) return nccl.Error(what, asked, comm);
    if (outcome == kSuccess) return Status();
    if (outcome != kInProgress) return nccl.Error(what, outcome, comm);
    if (Clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded,
                    "DeadlineError: " + what + ": " + late() + " after " + FormatSeconds(Clock::now() - start) + ".");
    }
  }
}

}  // namespace jaxcomm::nccl

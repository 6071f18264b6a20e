#include "cc/gpu/nccl/await.h"

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

Status AwaitCommunicator(const Library& nccl, Comm comm, const std::string& operation, Clock::time_point deadline,
                         const std::function<std::string()>& late) {
  const Clock::time_point start = Clock::now();
  for (Pause pause;; pause.Wait()) {
    Outcome outcome = kInProgress;
    const Outcome asked = nccl.CommGetAsyncError(comm, &outcome);
    if (asked != kSuccess) return nccl.Error(operation, asked, comm);
    if (outcome == kSuccess) return Status();
    if (outcome != kInProgress) return nccl.Error(operation, outcome, comm);
    if (Clock::now() >= deadline) {
      return Status(Code::kDeadlineExceeded, "DeadlineError: " + operation + ": " + late() + " after " +
                                                 FormatSeconds(Clock::now() - start) + ".");
    }
  }
}

}  // namespace jaxcomm::nccl

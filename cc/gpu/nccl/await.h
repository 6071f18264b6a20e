// Waiting for NCCL, which returns at once and goes on by itself.
//
//   Status status = AwaitCommunicator(nccl, comm, "joining", deadline, [] { return "not all of the 4 ranks have come";
//   });
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cc/base/status.h"
#include "cc/gpu/nccl/library.h"

namespace jaxcomm::nccl {

using Clock = std::chrono::steady_clock;

// So many seconds from now.
inline Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Between two looks: gives way at first, since most waits are short, and then sleeps.
class Pause {
 public:
  void Wait();

 private:
  const Clock::time_point start_ = Clock::now();
};

// Waits until what was begun on a communicator is under way. An error says that `operation` failed, and beyond the
// deadline also what `late` says then.
Status AwaitCommunicator(const Library& nccl, Comm comm, const std::string& operation, Clock::time_point deadline,
                         const std::function<std::string()>& late);

}  // namespace jaxcomm::nccl

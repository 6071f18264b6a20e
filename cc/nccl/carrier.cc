#include "cc/nccl/carrier.h"

#include <numeric>
#include <utility>

namespace jaxcomm::nccl {

std::vector<uint32_t> Carrier::everybody() const {
  std::vector<uint32_t> all(ranks_);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Status Carrier::Fail(Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = Stop(std::move(status));
  return failure_;
}

Status Carrier::Check() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (Status error = FirstError(); !error.ok()) failure_ = Stop(std::move(error));
  return failure_;
}

Status Carrier::Await(const Attendance& attendance, const std::function<bool()>& done, Clock::time_point start,
                      Clock::time_point deadline) {
  for (Pause pause;; pause.Wait()) {
    if (done()) return Status();
    if (Status status = attendance.WrongOrder(); !status.ok()) return Fail(status);
    if (Status status = Check(); !status.ok()) return attendance.Lost(status);
    if (Clock::now() >= deadline) return Fail(attendance.Late(Clock::now() - start));
  }
}

}  // namespace jaxcomm::nccl

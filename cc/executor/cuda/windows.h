// The meeting of ranks that NCCL has brought together: each is a place of its own, with a window that the others reach.
//
//   auto meeting = std::make_unique<Windows>(communicators, device, bytes, attendance, deadline, /*multicast=*/false);
//   std::byte* data = meeting->data();   // after Meet: `bytes` of each rank, in which operands are reduced
//
// Others see only what is in the window, so operands are copied there and results back. Where a rank fails before it
// comes, the others find out at their deadline.
#pragma once

#include <cstddef>
#include <memory>

#include "cc/executor/cuda/meeting.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/communicators.h"
#include "cc/nccl/window.h"

namespace jaxcomm::fused {

class Windows : public Meeting {
 public:
  // `multicast` asks for an address by which a switch stores to all; without one the meeting fails.
  Windows(std::shared_ptr<nccl::Communicators> ranks, int device, size_t bytes, nccl::Attendance attendance,
          nccl::Clock::time_point deadline, bool multicast);
  ~Windows() override;

  std::byte* data() const { return window_->memory(); }

  Result<std::byte*> Allocate(size_t place, size_t bytes) override;
  Status Meet(const Status& mine) override;
  View See(size_t from, size_t to) const override;
  std::byte* Everywhere() const override { return everywhere_; }
  Status CheckReach(size_t place, const std::byte* data, int64_t bytes) const override;

 private:
  const std::shared_ptr<nccl::Communicators> ranks_;
  const int device_;
  const size_t bytes_, block_at_;
  const nccl::Attendance attendance_;
  const nccl::Clock::time_point deadline_;
  const bool multicast_;
  std::unique_ptr<nccl::Window> window_;
  std::byte* everywhere_ = nullptr;
};

// Whether a device has the instructions for it; the machine may still have no such switch.
Status CheckMulticast(int device);

}  // namespace jaxcomm::fused

#include "cc/executor/cuda/windows.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "cc/executor/cuda/error.h"
#include "cc/executor/cuda/on_device.h"

namespace jaxcomm::fused {
namespace {

// NCCL's windows come in whole pages of the device's memory, and all ranks' must be of one size.
constexpr size_t kPage = size_t{2} << 20;

// Where a block may begin.
constexpr size_t kAlignment = 256;

// An error of a call that Ranks gives its name.
Status Unnamed(const Status& status) {
  constexpr char kName[] = "DeadlineError: ";
  const std::string& message = status.message();
  return Status(status.code(), message.rfind(kName, 0) == 0 ? message.substr(sizeof(kName) - 1) : message);
}

size_t Aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Windows::Windows(std::shared_ptr<nccl::Communicators> ranks, int device, size_t bytes, nccl::Attendance attendance,
                 nccl::Clock::time_point deadline, bool multicast)
    : ranks_(std::move(ranks)),
      device_(device),
      bytes_(bytes),
      block_at_(Aligned(bytes, kAlignment)),
      attendance_(std::move(attendance)),
      deadline_(deadline),
      multicast_(multicast) {}

Windows::~Windows() {
  const OnDevice on(device_);
  cudaDeviceSynchronize();  // freeing a window waits for no kernel
  window_.reset();
}

Result<std::byte*> Windows::Allocate(size_t, size_t bytes) {
  const OnDevice on(device_);
  Result<std::unique_ptr<nccl::Window>> made = nccl::Window::Allocate(ranks_, Aligned(block_at_ + bytes, kPage));
  if (!made.ok()) return made.status();
  window_ = std::move(made.value());
  return window_->memory() + block_at_;
}

Status Windows::Meet(const Status& mine) {
  if (mine.code() == Code::kUnimplemented) return mine;  // no rank has windows, and the group may do without
  if (!mine.ok()) return ranks_->Fail(mine);             // or this rank would be one meeting behind the others
  const OnDevice on(device_);
  if (Status status = window_->Register(attendance_, deadline_); !status.ok()) return Unnamed(status);
  if (!multicast_) return Status();
  const Result<std::byte*> all = window_->Everywhere();
  if (all.ok()) everywhere_ = all.value();
  return all.status();
}

// A rank's own operands are where it allocated its window; NCCL maps that once more for the ranks to reach.
View Windows::See(size_t from, size_t to) const {
  std::byte* const there = to == from ? window_->memory() : window_->Of(static_cast<uint32_t>(to));
  return {there + block_at_, reinterpret_cast<uint64_t>(there)};
}

Status Windows::CheckReach(size_t, const std::byte* data, int64_t bytes) const {
  if (data == window_->memory() && bytes <= static_cast<int64_t>(bytes_)) return Status();
  return Status(Code::kInternal, "other ranks reach only what lies in this rank's window");
}

Status CheckMulticast(int device) {
  int major = 0;
  const std::string who = "GPU " + std::to_string(device);
  const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return CudaError(who, error);
  if (major >= 9) return Status();
  return Status(Code::kUnimplemented, who + " is of compute capability " + std::to_string(major) +
                                          "; stores to all ranks at once need 9 or more.\n"
                                          "  Cure: leave jaxcomm.ffi.fused.MULTICAST unset.");
}

}  // namespace jaxcomm::fused

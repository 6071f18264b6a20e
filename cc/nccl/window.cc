#include "cc/nccl/window.h"

#include <string>

#include "cc/base/text.h"

namespace jaxcomm::nccl {
namespace {

Status Unimplemented(const std::string& what) { return Status(Code::kUnimplemented, what); }

}  // namespace

Result<std::unique_ptr<Window>> Window::Allocate(std::shared_ptr<Communicators> ranks, size_t bytes) {
  const Library& nccl = ranks->library();
  if (nccl.GetPeerDevicePointer == nullptr) {
    return Unimplemented("libnccl " + nccl.VersionText() +
                         " does not say where other ranks' windows are; 2.29 or later does.\n"
                         "  Cure: pip install -U nvidia-nccl-cu13, or call all_reduce, which sends and receives.");
  }
  std::unique_ptr<Window> made(new Window(ranks));
  const Outcome outcome = nccl.MemAlloc(&made->given_->memory, bytes);
  if (outcome != kSuccess) {
    return nccl.Error(ranks->Self() + "allocating a window of " + FormatBytes(static_cast<int64_t>(bytes)), outcome,
                      nullptr);
  }
  made->bytes_ = bytes;
  return made;
}

Window::~Window() {
  if (!ranks_->Check().ok()) {
    ranks_->Keep(given_);  // ends with the communicators, which may still be at it
  } else if (given_->window != nullptr) {
    ranks_->library().CommWindowDeregister(ranks_->rail(0), given_->window);
  }
}

Status Window::Register(const Attendance& attendance, Clock::time_point deadline) {
  const Library& nccl = ranks_->library();
  const Comm comm = ranks_->rail(0);
  const Clock::time_point start = Clock::now();
  attendance.Arrive();
  const Outcome begun = nccl.CommWindowRegister(comm, given_->memory, bytes_, &given_->window, kSymmetric);
  if (begun != kSuccess && begun != kInProgress) {
    return ranks_->Fail(attendance.Lost(nccl.Error("registering a window", begun, comm)));
  }
  const auto registered = [&] {
    Outcome outcome = kInProgress;
    return nccl.CommGetAsyncError(comm, &outcome) == kSuccess && outcome == kSuccess;
  };
  if (Status status = ranks_->Await(attendance, registered, start, deadline); !status.ok()) return status;
  if (given_->window == nullptr) {
    return Unimplemented(ranks_->Self() +
                         "NCCL has no windows for these ranks: they need GPUs that reach each other's memory, and "
                         "neither NCCL_CUMEM_ENABLE=0 nor NCCL_WIN_ENABLE=0.\n"
                         "  Cure: call all_reduce, which sends and receives.");
  }
  std::vector<uint32_t> beyond;
  for (uint32_t rank = 0; rank < ranks_->ranks(); ++rank) {
    void* there = nullptr;
    const Outcome outcome = nccl.GetPeerDevicePointer(given_->window, 0, static_cast<int>(rank), &there);
    if (outcome != kSuccess) {
      return nccl.Error(ranks_->Self() + "finding the window of rank " + std::to_string(rank), outcome, comm);
    }
    if (there == nullptr) beyond.push_back(rank);
    peers_.push_back(static_cast<std::byte*>(there));
  }
  if (beyond.empty()) return Status();
  return Unimplemented(
      ranks_->Self() + "the GPU cannot reach the memory of rank" + (beyond.size() > 1 ? "s " : " ") +
      JoinRanks(beyond) +
      ".\n  Cure: join only ranks that NVLink connects, or call all_reduce, which sends and receives.");
}

Result<std::byte*> Window::Everywhere() const {
  const Library& nccl = ranks_->library();
  void* all = nullptr;
  const Outcome outcome = nccl.GetLsaMultimemDevicePointer(given_->window, 0, &all);
  if (outcome != kSuccess) {
    return nccl.Error(ranks_->Self() + "finding the address of all ranks", outcome, ranks_->rail(0));
  }
  if (all == nullptr) {
    return Unimplemented(
        ranks_->Self() +
        "no switch here stores to all ranks at once (NVLink SHARP, on NVSwitch from the third "
        "generation on; NCCL_NVLS_ENABLE=0 turns it off).\n  Cure: leave jaxcomm.ffi.fused.MULTICAST unset.");
  }
  return static_cast<std::byte*>(all);
}

}  // namespace jaxcomm::nccl

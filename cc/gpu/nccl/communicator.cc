#include "cc/gpu/nccl/communicator.h"

#include <exception>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/finally.h"
#include "cc/base/text.h"
#include "cc/gpu/executor/device.h"

namespace jaxcomm::nccl {

// NCCL waits for all ranks without a deadline, so a separate thread calls NCCL. If a rank never joins, that thread
// never ends.
Result<std::shared_ptr<Communicator>> Communicator::Join(const Library& nccl, int device, const GroupRank& joining,
                                                         std::chrono::duration<double> deadline) {
  auto made = std::make_shared<Communicator>(nccl, joining);
  const std::string who = "NCCL, rank " + std::to_string(joining.rank) + " of " + std::to_string(joining.ranks) + ": ";
  std::promise<Status> end;
  std::future<Status> connected = end.get_future();
  std::thread([joined = made, device, end = std::move(end)]() mutable {
    Status status;
    try {
      status = joined->Connect(device);
    } catch (...) {
      joined.reset();
      return end.set_exception(std::current_exception());
    }
    joined.reset();  // must precede set_value, so that only the caller's pointer keeps the communicator alive
    end.set_value(std::move(status));
  }).detach();
  if (connected.wait_for(deadline) != std::future_status::ready) {
    return Status(Code::kDeadlineExceeded,
                  "DeadlineError: " + who + "not all ranks have joined after " +
                      FormatSeconds(std::chrono::duration_cast<std::chrono::steady_clock::duration>(deadline)) +
                      ".\n  Cure: find what is wrong in the other processes, then restart all of them.");
  }
  const Status status = connected.get();
  if (!status.ok()) return Status(status.code(), who + status.message());
  return made;
}

Communicator::~Communicator() {
  if (comm_ != nullptr) nccl_.CommAbort(comm_);
}

Status Communicator::Run(const std::function<Status(const Library& nccl, Comm comm)>& queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  Outcome earlier = kSuccess;
  if (failure_.ok()) failure_ = nccl_.Check("asking NCCL", nccl_.CommGetAsyncError(comm_, &earlier), comm_);
  if (failure_.ok()) failure_ = nccl_.Check("an earlier call", earlier, comm_);
  if (failure_.ok()) failure_ = queue(nccl_, comm_);
  if (failure_.ok()) return failure_;
  return Status(failure_.code(), failure_.message() + ".\n  Cure: restart the job's processes.");
}

// NCCL connects two ranks at their first message. So each rank sends a byte to every other rank here.
Status Communicator::Connect(int device) {
  const OnDevice on(device);
  if (on.error() != cudaSuccess) return CudaError("choosing the device", on.error());
  const Outcome joined = nccl_.CommInitRank(&comm_, static_cast<int>(ranks()), joining_.id, static_cast<int>(rank()));
  if (Status status = nccl_.Check("joining", joined, comm_); !status.ok()) return status;
  const uint32_t n = ranks();
  void* memory = nullptr;
  if (const cudaError_t error = cudaMalloc(&memory, 2 * size_t{n}); error != cudaSuccess) {
    return CudaError("memory for connecting", error);
  }
  const Finally free_memory([memory] { cudaFree(memory); });
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess) {
    return CudaError("a stream for connecting", error);
  }
  auto* const bytes = static_cast<std::byte*>(memory);
  Outcome outcome = nccl_.GroupStart();
  for (uint32_t i = 1; i < n && outcome == kSuccess; ++i) {
    const auto to = static_cast<int>((rank() + i) % n), from = static_cast<int>((rank() + n - i) % n);
    outcome = nccl_.Send(bytes + to, 1, kInt8, to, comm_, stream);
    if (outcome == kSuccess) outcome = nccl_.Recv(bytes + n + from, 1, kInt8, from, comm_, stream);
  }
  const Outcome ended = nccl_.GroupEnd();
  Status status = nccl_.Check("connecting", outcome == kSuccess ? ended : outcome, comm_);
  if (status.ok()) status = CudaError("connecting", cudaStreamSynchronize(stream));
  cudaStreamDestroy(stream);
  return status;
}

}  // namespace jaxcomm::nccl

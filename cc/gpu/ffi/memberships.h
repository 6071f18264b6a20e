// The groups that devices of this process have joined, and the messages by which they run schedules.
//
//   Result<NcclCall> call = BeginNcclCall(device, "data", "3f9a01c2…");
//
// Groups and messages come from Python, through exported functions of their own. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "cc/gpu/nccl/arrival_table.h"
#include "cc/gpu/nccl/communicator.h"
#include "cc/program/messages.h"

namespace jaxcomm {

// Memory of ours on a device.
class OwnMemory {
 public:
  explicit OwnMemory(void* memory) : memory_(memory) {}
  ~OwnMemory() { cudaFree(memory_); }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  std::byte* get() const { return static_cast<std::byte*>(memory_); }

 private:
  void* const memory_;
};

// One device's membership in a group of ranks.
struct Membership {
  std::unique_ptr<nccl::ArrivalTable> arrivals;
  std::unique_ptr<nccl::Communicator> communicator;
  std::unique_ptr<OwnMemory> headers;  // of all ranks' calls, and behind them this rank's
  std::mutex mutex;                    // calls are issued one after the other, in the order in which XLA runs them
  uint64_t calls = 0;
};

// One call, which has its device's membership to itself until this ends.
struct NcclCall {
  std::shared_ptr<Membership> membership;
  std::unique_lock<std::mutex> lock;
  double deadline_s;
  std::shared_ptr<const Messages> messages;  // null: there is one rank
};

// An error where the device has not joined the group, the group has failed, or the messages are not for so many ranks.
Result<NcclCall> BeginNcclCall(int device, std::string_view group, std::string_view messages);

// An error of CUDA's in an operation for messages.
Status CudaError(const char* operation, cudaError_t error);

}  // namespace jaxcomm

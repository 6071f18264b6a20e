// The groups that devices of this process have joined, and the messages by which they run schedules.
//
//   Result<Turn> turn = TakeTurn(device, "data", /*iteration=*/-1, "3f9a01c2…");   // for a call by messages
//
// Groups and messages come from Python, through exported functions of their own. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/messages/messages.h"
#include "cc/nccl/board.h"
#include "cc/nccl/communicators.h"
#include "cc/nccl/loan.h"

namespace jaxcomm {

// A stream of ours, which does not wait for the default stream.
class OwnStream {
 public:
  explicit OwnStream(cudaStream_t stream) : stream_(stream) {}
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t const stream_;
};

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

// One device's part in a group of ranks, by communicators of ours or by those that XLA lends.
struct Part {
  std::unique_ptr<nccl::Board> board;
  std::shared_ptr<nccl::Communicators> communicators;  // one of these two is there
  std::unique_ptr<nccl::Loan> loan;
  std::unique_ptr<OwnMemory> numbers;  // with the loan: where its ranks tell their numbers, and one number more
  std::vector<std::unique_ptr<OwnStream>> streams;  // of the rails after the first, which has XLA's
  double deadline_s;                                // 0: the process's
  std::mutex issue;  // calls are issued one after the other, in the order in which XLA runs them
  uint32_t calls = 0;

  nccl::Carrier& carrier() const { return communicators ? static_cast<nccl::Carrier&>(*communicators) : *loan; }
};

// One call has its device's part to itself, until this ends.
struct Hold {
  int device;
  std::shared_ptr<Part> part;
  std::unique_lock<std::mutex> issue;
  double deadline_s;
};

// An error where the device has not joined the group, or the group has failed.
Result<Hold> TakePart(int device, std::string_view group);

// One call by messages.
struct Turn : Hold {
  std::vector<uint32_t> members;             // who makes the call
  std::shared_ptr<const Messages> messages;  // null: there is one member
};

// What a group's members make of `messages` is what was handed in for so many ranks. `iteration` is that of the period
// of groups whose turn it is; below 0: the call is of all ranks.
Result<Turn> TakeTurn(int device, std::string_view group, int64_t iteration, std::string_view messages);

// An error of CUDA's, while `what` was done for messages.
Status CudaError(const char* what, cudaError_t error);

}  // namespace jaxcomm

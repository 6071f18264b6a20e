// A call on its way: what it has on each communicator, and waiting for its end.
//
//   Status status = RunLanes(turn, attendance, before, lanes, stream);   // returns when the call has ended or failed
//
// What a call that failed has left in its results must not be taken for a sum, so XLA's thread of the device is held
// until then. What goes to a communicator of XLA's is queued by a thread of its own, since NCCL may block there; where
// the deadline passes first, that thread is left behind.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "cc/ffi/cuda/memberships.h"
#include "cc/messages/runner.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/library.h"
#include "cc/nccl/settle.h"

namespace jaxcomm {

// An event, destroyed with its owner.
class Event {
 public:
  Status Record(cudaStream_t stream) {
    cudaError_t error = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventRecord(event_, stream);
    return error == cudaSuccess ? Status() : CudaError("recording an event", error);
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaError_t Query() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) cudaGetLastError();  // or the next launch would be blamed for it
    return state;
  }
  Status HaveWait(cudaStream_t stream) const {
    const cudaError_t error = cudaStreamWaitEvent(stream, event_, 0);
    return error == cudaSuccess ? Status() : CudaError("waiting for an event", error);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What one communicator carries of a call, on a stream of its own.
struct Lane {
  nccl::Comm comm;
  cudaStream_t stream;
  Runner runner;
  std::vector<std::byte*> leaves;
  std::byte* scratch = nullptr;
};

// What must happen on the stream before the lanes; its deadline is the call's, and it needs no more than the part.
using Before = std::function<Status(nccl::Clock::time_point deadline)>;

Status RunLanes(const Turn& turn, const nccl::Attendance& attendance, const Before& before,
                const std::vector<Lane>& lanes, cudaStream_t stream);

}  // namespace jaxcomm

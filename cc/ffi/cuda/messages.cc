// The custom call "jaxcomm_messages": an all-reduce by sends and receives between processes that NCCL connects.
//
// It waits for its own end: what a call that failed has left in its results must not be taken for a sum. So XLA's
// thread of the device is held for as long as the call takes.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cc/ffi/cuda/groups.h"
#include "cc/ffi/values.h"
#include "cc/kernels/cuda/reduce.h"
#include "cc/messages/runner.h"
#include "cc/nccl/wire.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using nccl::Clock;

Status CudaError(const char* what, cudaError_t error) {
  return Status(Code::kInternal, std::string("messages: ") + what + ": " + cudaGetErrorString(error));
}

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
  cudaError_t Query() const { return cudaEventQuery(event_); }

 private:
  cudaEvent_t event_ = nullptr;
};

Status Reduce(DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
              size_t bytes, cudaStream_t stream) {
  if (sources.size() > cuda::kMaxSources) {
    return Status(Code::kUnimplemented, "messages: a sum of " + std::to_string(sources.size()) +
                                            " ranks at once; the kernel adds 64.\n  Cure: plan with fewer `ports`.");
  }
  cuda::Sources all = {{}, sources.size()};
  std::copy(sources.begin(), sources.end(), all.buffers);
  return cuda::Reduce(dtype, reduction, all, to, bytes, stream);
}

Status Run(Part& part, const std::string& what, nccl::Comm comm, const Runner& runner,
           const std::vector<std::byte*>& leaves, std::byte* scratch, cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(part.issue);
  nccl::Communicators& ranks = *part.communicators;
  if (Status status = ranks.Check(); !status.ok()) return status;
  const uint64_t call = ++part.calls;
  const std::string name = what + " #" + std::to_string(call);

  // What the step computes before the call takes as long as it takes; the deadline counts from this rank's arrival.
  Event arrived;
  if (Status status = arrived.Record(stream); !status.ok()) return status;
  cudaError_t before;
  while ((before = arrived.Query()) == cudaErrorNotReady) std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (before != cudaSuccess) return CudaError("the step before it", before);
  if (part.board) part.board->Arrive(ranks.rank(), call);

  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(part.deadline_s));
  nccl::NcclWire wire(
      ranks.library(), comm, stream, deadline,
      [stream](DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
               size_t bytes) { return Reduce(dtype, reduction, sources, to, bytes, stream); });
  const auto missing = [&] { return part.board ? part.board->Missing(call) : std::vector<uint32_t>(); };
  Status queued = runner.Run(leaves, scratch, wire);
  Event end;
  if (queued.ok()) queued = end.Record(stream);
  if (!queued.ok()) {
    // Where peers are not there before everything is queued, the deadline has passed, and Await says who is missing.
    if (queued.code() == Code::kDeadlineExceeded)
      return ranks.Await(
          name, [] { return false; }, start, deadline, missing);
    return ranks.Fail(Status(queued.code(), name + ": " + queued.message()));
  }
  cudaError_t state = cudaErrorNotReady;
  const auto done = [&] { return (state = end.Query()) != cudaErrorNotReady; };
  const Status status = ranks.Await(name, done, start, deadline, missing);
  if (status.ok() && state != cudaSuccess) return CudaError(name.c_str(), state);
  return status;
}

ffi::Error AllReduce(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, std::string_view what, std::string_view group, int64_t iteration,
                     std::string_view messages, std::string_view reduction) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return ToError(CudaError("the device", error));
  }
  const Result<MessageCall> found = FindCall(device, group, iteration, messages);
  if (!found.ok()) return ToError(found.status());
  const MessageCall& call = found.value();
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return ToError(InvalidArgument("messages: unknown reduction '" + std::string(reduction) + "'"));
  std::vector<Leaf> leaves;
  std::vector<std::byte*> at;
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(i);
    ffi::Result<ffi::AnyBuffer> y = *results.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(x.element_type());
    if (!dtype) return ToError(Status(Code::kUnimplemented, "messages: no reduction of this element type"));
    if (x.untyped_data() != y->untyped_data()) {
      const cudaError_t copied =
          cudaMemcpyAsync(y->untyped_data(), x.untyped_data(), x.size_bytes(), cudaMemcpyDeviceToDevice, stream);
      if (copied != cudaSuccess) return ToError(CudaError("copying an operand", copied));
    }
    leaves.push_back({*dtype, static_cast<int64_t>(x.size_bytes())});
    at.push_back(static_cast<std::byte*>(y->untyped_data()));
  }
  const Runner runner(call.messages, Layout(std::move(leaves)), *parsed);
  std::byte* memory = nullptr;
  if (runner.scratch_bytes() != 0) {
    const std::optional<void*> allocated = scratch.Allocate(runner.scratch_bytes(), 256);
    if (!allocated) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "messages: no memory for their scratch");
    memory = static_cast<std::byte*>(*allocated);
  }
  return ToError(Run(*call.part, std::string(what), call.comm, runner, at, memory, stream));
}

XLA_FFI_DEFINE_HANDLER(kMessages, AllReduce,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("what")
                           .Attr<std::string_view>("group")
                           .Attr<int64_t>("iteration")
                           .Attr<std::string_view>("messages")
                           .Attr<std::string_view>("reduction"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame) { return kMessages(frame); }

}  // namespace jaxcomm

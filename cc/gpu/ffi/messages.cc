// The custom call "jaxcomm_messages": an all-reduce by sends and receives between processes that NCCL connects.
//
// What a call that failed has left in its results must not be taken for a sum, so XLA's thread of the device is held
// until its end.

#include "cc/program/messages.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/text.h"
#include "cc/ffi/values.h"
#include "cc/gpu/executor/on_device.h"
#include "cc/gpu/ffi/memberships.h"
#include "cc/gpu/kernels/reduce.h"
#include "cc/gpu/nccl/arrival_report.h"
#include "cc/gpu/nccl/await.h"
#include "cc/gpu/nccl/channel.h"
#include "cc/gpu/nccl/runner.h"
#include "cc/gpu/nccl/same_call.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using nccl::Clock;

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

 private:
  cudaEvent_t event_ = nullptr;
};

// A call in flight.
struct CallInFlight {
  const NcclCall& nccl_call;
  const nccl::ArrivalReport report;
  const nccl::CallHeader header;
  const Runner runner;
  const std::vector<std::byte*> leaves;
  std::byte* const scratch;
  cudaStream_t const stream;

  nccl::Communicator& all() const { return *nccl_call.membership->communicator; }
};

// Of what all ranks must have in common in a call, beside its name.
std::string Attributes(const std::vector<Leaf>& leaves, std::string_view messages, std::string_view reduction) {
  std::string text = std::string(messages) + ";" + std::string(reduction);
  for (const Leaf& leaf : leaves) {
    text += ";" + std::to_string(static_cast<int>(leaf.dtype)) + "," + std::to_string(leaf.bytes);
  }
  return text;
}

// The operands, copied to the results where they are not the same memory.
Status CopyOperands(ffi::RemainingArgs args, ffi::RemainingRets results, cudaStream_t stream, std::vector<Leaf>& leaves,
                    std::vector<std::byte*>& at) {
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer x = *args.get<ffi::AnyBuffer>(i);
    ffi::Result<ffi::AnyBuffer> y = *results.get<ffi::AnyBuffer>(i);
    const std::optional<DType> dtype = ParseDType(x.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "messages: no reduction of this element type");
    if (x.untyped_data() != y->untyped_data()) {
      const cudaError_t copied =
          cudaMemcpyAsync(y->untyped_data(), x.untyped_data(), x.size_bytes(), cudaMemcpyDeviceToDevice, stream);
      if (copied != cudaSuccess) return CudaError("copying an operand", copied);
    }
    leaves.push_back({*dtype, static_cast<int64_t>(x.size_bytes())});
    at.push_back(static_cast<std::byte*>(y->untyped_data()));
  }
  return Status();
}

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

// Waits for what the stream has been given so far.
Status AwaitStream(const CallInFlight& call, Clock::time_point start, Clock::time_point deadline) {
  Event end;
  if (Status status = end.Record(call.stream); !status.ok()) return call.all().Fail(status);
  cudaError_t state = cudaErrorNotReady;
  const auto done = [&] { return (state = end.Query()) != cudaErrorNotReady; };
  Status status = call.all().Await(call.report, done, start, deadline);
  if (status.ok() && state != cudaSuccess) return call.all().Fail(CudaError(call.report.call.Text().c_str(), state));
  return status;
}

// Has the ranks compare their calls, before they send anything of them.
Status CompareCalls(const CallInFlight& call, Clock::time_point start, Clock::time_point deadline) {
  const nccl::Library& nccl = call.all().library();
  std::byte* const memory = call.nccl_call.membership->headers->get();
  std::vector<nccl::CallHeader> headers(call.all().ranks());
  const size_t bytes = headers.size() * sizeof(nccl::CallHeader);
  std::byte* const mine = memory + bytes;
  cudaError_t error = cudaMemcpyAsync(mine, &call.header, sizeof(call.header), cudaMemcpyHostToDevice, call.stream);
  if (error != cudaSuccess) return CudaError("writing a call's header", error);
  constexpr char kOperation[] = "comparing calls";
  const nccl::Comm comm = call.all().comm();
  const nccl::Outcome begun = nccl.AllGather(mine, memory, sizeof(call.header), nccl::kInt8, comm, call.stream);
  if (begun != nccl::kSuccess && begun != nccl::kInProgress) return nccl.Error(kOperation, begun, comm);
  Status status = nccl::AwaitCommunicator(nccl, comm, kOperation, deadline, [] { return "it was not launched"; });
  if (status.ok()) status = AwaitStream(call, start, deadline);
  if (!status.ok()) return status;
  error = cudaMemcpyAsync(headers.data(), memory, bytes, cudaMemcpyDeviceToHost, call.stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(call.stream);
  if (error != cudaSuccess) return CudaError("reading the calls' headers", error);
  return nccl::CheckSameCall(headers, call.all().rank());
}

// Returns when the call has ended or failed.
Status Run(const CallInFlight& call) {
  // What the step computes before the call takes as long as it takes; the deadline counts from this rank's arrival.
  Event arrived;
  if (Status status = arrived.Record(call.stream); !status.ok()) return status;
  cudaError_t step;
  for (nccl::Pause pause; (step = arrived.Query()) == cudaErrorNotReady;) pause.Wait();
  if (step != cudaSuccess) return CudaError("the step before it", step);
  call.report.Arrive();

  const Clock::time_point start = Clock::now(), deadline = nccl::After(call.nccl_call.deadline_s);
  Status status = CompareCalls(call, start, deadline);
  if (status.ok()) {
    nccl::NcclChannel channel(
        call.all().library(), call.all().comm(), call.stream, deadline,
        [&call](DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                size_t bytes) { return Reduce(dtype, reduction, sources, to, bytes, call.stream); });
    status = call.runner.Run(call.leaves, call.scratch, channel);
  }
  if (status.ok()) return AwaitStream(call, start, deadline);
  if (Status fault = call.all().Check(); !fault.ok()) return call.report.Lost(fault);
  return call.all().Fail(status.code() == Code::kDeadlineExceeded  ? call.report.Late(Clock::now() - start)
                         : status.code() == Code::kInvalidArgument ? status
                                                                   : call.report.Lost(status));
}

ffi::Error AllReduce(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, std::string_view name, std::string_view group,
                     std::string_view messages, std::string_view reduction) {
  int device = 0;
  if (const cudaError_t error = cudaStreamGetDevice(stream, &device); error != cudaSuccess) {
    return ToError(CudaError("the stream's device", error));
  }
  const OnDevice here(device);  // events and kernels are the current device's
  Result<NcclCall> taken = BeginNcclCall(device, group, messages);
  if (!taken.ok()) return ToError(taken.status());
  const NcclCall& nccl_call = taken.value();
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return ToError(InvalidArgument("messages: unknown reduction '" + std::string(reduction) + "'"));
  std::vector<Leaf> leaves;
  std::vector<std::byte*> at;
  if (Status status = CopyOperands(args, results, stream, leaves, at); !status.ok()) return ToError(status);
  if (!nccl_call.messages) return ffi::Error::Success();

  const uint64_t number = ++nccl_call.membership->calls;
  const CallName call_name{std::string(name), std::string(group), "", Layout(leaves).payload(),
                           static_cast<int64_t>(number)};
  const nccl::CallHeader header = nccl::Header(number, call_name.Text(), Attributes(leaves, messages, reduction));
  Runner runner(nccl_call.messages, Layout(std::move(leaves)), *parsed);
  std::byte* memory = nullptr;
  if (runner.scratch_bytes() > 0) {
    const std::optional<void*> allocated = scratch.Allocate(runner.scratch_bytes(), 256);
    if (!allocated) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "messages: no memory for their scratch");
    memory = static_cast<std::byte*>(*allocated);
  }
  const nccl::Communicator& all = *nccl_call.membership->communicator;
  const CallInFlight call{nccl_call, {call_name, all.rank(), all.ranks(), nccl_call.membership->arrivals.get(), number},
                          header,    std::move(runner),
                          at,        memory,
                          stream};
  return ToError(Run(call));
}

XLA_FFI_DEFINE_HANDLER(kMessages, AllReduce,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<std::string_view>("name")
                           .Attr<std::string_view>("group")
                           .Attr<std::string_view>("messages")
                           .Attr<std::string_view>("reduction"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame) { return kMessages(frame); }

}  // namespace jaxcomm

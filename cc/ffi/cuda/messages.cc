// The custom call "jaxcomm_messages": an all-reduce by sends and receives between processes that NCCL connects.
//
// It waits for its own end: what a call that failed has left in its results must not be taken for a sum. So XLA's
// thread of the device is held for as long as the call takes.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/text.h"
#include "cc/ffi/cuda/memberships.h"
#include "cc/ffi/values.h"
#include "cc/kernels/cuda/reduce.h"
#include "cc/messages/cut.h"
#include "cc/messages/runner.h"
#include "cc/nccl/attendance.h"
#include "cc/nccl/wire.h"
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
  cudaError_t Query() const { return cudaEventQuery(event_); }
  Status HaveWait(cudaStream_t stream) const {
    const cudaError_t error = cudaStreamWaitEvent(stream, event_, 0);
    return error == cudaSuccess ? Status() : CudaError("waiting for an event", error);
  }

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

// What one communicator carries of a call, on a stream of its own.
struct Lane {
  nccl::Comm comm;
  cudaStream_t stream;
  Runner runner;
  std::vector<std::byte*> leaves;
  std::byte* scratch = nullptr;
};

// Has one stream wait for what another has been given so far.
Status Follow(cudaStream_t follower, cudaStream_t leader) {
  Event event;
  if (Status status = event.Record(leader); !status.ok()) return status;
  return event.HaveWait(follower);
}

// Queues a call lane by lane, in the order that all ranks have in common. Whatever comes after it on the stream comes
// after all lanes, also where one fails: they write to its memory.
Status Queue(const nccl::Library& nccl, const std::vector<Lane>& lanes, cudaStream_t stream,
             Clock::time_point deadline) {
  Status status;
  for (const Lane& lane : lanes) {
    if (status.ok() && lane.stream != stream) status = Follow(lane.stream, stream);
  }
  for (const Lane& lane : lanes) {
    if (!status.ok()) break;
    nccl::NcclWire wire(
        nccl, lane.comm, lane.stream, deadline,
        [&lane](DType dtype, Reduction reduction, const std::vector<const std::byte*>& sources, std::byte* to,
                size_t bytes) { return Reduce(dtype, reduction, sources, to, bytes, lane.stream); });
    status = lane.runner.Run(lane.leaves, lane.scratch, wire);
  }
  for (const Lane& lane : lanes) {
    if (lane.stream == stream) continue;
    const Status joined = Follow(stream, lane.stream);
    if (status.ok()) status = joined;
  }
  return status;
}

Status Run(nccl::Communicators& ranks, const nccl::Attendance& attendance, const std::vector<Lane>& lanes,
           cudaStream_t stream, double deadline_s) {
  // What the step computes before the call takes as long as it takes; the deadline counts from this rank's arrival.
  Event arrived;
  if (Status status = arrived.Record(stream); !status.ok()) return status;
  cudaError_t before;
  for (nccl::Pause pause; (before = arrived.Query()) == cudaErrorNotReady;) pause.Wait();
  if (before != cudaSuccess) return CudaError("the step before it", before);
  attendance.Arrive();

  const Clock::time_point start = Clock::now();
  const Clock::time_point deadline =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s));
  const auto never = [] { return false; };
  Status queued = attendance.WrongOrder();
  if (queued.ok()) queued = Queue(ranks.library(), lanes, stream, deadline);
  Event end;
  if (queued.ok()) queued = end.Record(stream);
  // Where peers are not there before everything is queued, the deadline has passed, and Await says who is missing.
  if (queued.code() == Code::kDeadlineExceeded) return ranks.Await(attendance, never, start, deadline);
  if (!queued.ok()) return ranks.Fail(attendance.Lost(queued));
  cudaError_t state = cudaErrorNotReady;
  const auto done = [&] { return (state = end.Query()) != cudaErrorNotReady; };
  const Status status = ranks.Await(attendance, done, start, deadline);
  if (status.ok() && state != cudaSuccess) return ranks.Fail(CudaError(attendance.call.c_str(), state));
  return status;
}

// Of what all ranks must have in common in a call.
uint32_t Print(const std::vector<Leaf>& leaves, const std::string& attributes) {
  std::string text = attributes;
  for (const Leaf& leaf : leaves) {
    text += ";" + std::to_string(static_cast<int>(leaf.dtype)) + "," + std::to_string(leaf.bytes);
  }
  return nccl::PrintOf(text);
}

// The operands, copied to the results where they are not the same memory.
Status Place(ffi::RemainingArgs args, ffi::RemainingRets results, cudaStream_t stream, std::vector<Leaf>& leaves,
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

// The lanes of a call: its group's, or those of the rails that have a share of it.
std::vector<Lane> Lanes(const Turn& turn, const std::vector<Leaf>& leaves, const std::vector<std::byte*>& at,
                        Reduction reduction, const std::vector<double>& shares, cudaStream_t stream) {
  std::vector<Lane> lanes;
  if (turn.group != nullptr) {
    lanes.push_back({turn.group, stream, Runner(turn.messages, Layout(leaves), reduction), at});
    return lanes;
  }
  const std::vector<std::vector<Piece>> cut = Cut(Layout(leaves), shares);
  for (size_t rail = 0; rail < cut.size(); ++rail) {
    if (cut[rail].empty()) continue;
    std::vector<Leaf> parts;
    std::vector<std::byte*> places;
    for (const Piece& piece : cut[rail]) {
      parts.push_back({leaves[piece.leaf].dtype, piece.bytes});
      places.push_back(at[piece.leaf] + piece.offset);
    }
    lanes.push_back({turn.part->communicators->rail(rail), rail == 0 ? stream : turn.part->streams[rail - 1]->get(),
                     Runner(turn.messages, Layout(std::move(parts)), reduction), std::move(places)});
  }
  return lanes;
}

ffi::Error AllReduce(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, std::string_view what, std::string_view group, int64_t iteration,
                     std::string_view messages, std::string_view reduction, ffi::Span<const double> given) {
  int device = 0;
  if (const cudaError_t error = cudaStreamGetDevice(stream, &device); error != cudaSuccess) {
    return ToError(CudaError("the stream's device", error));
  }
  Result<Turn> taken = TakeTurn(device, group, iteration, messages);
  if (!taken.ok()) return ToError(taken.status());
  const Turn& turn = taken.value();
  const std::vector<double> shares(given.begin(), given.end());
  if (shares.size() > turn.part->streams.size() + 1) {
    return ToError(InvalidArgument("messages: " + std::to_string(shares.size()) + " shares; the group has " +
                                   std::to_string(turn.part->streams.size() + 1) + " rails"));
  }
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return ToError(InvalidArgument("messages: unknown reduction '" + std::string(reduction) + "'"));
  std::vector<Leaf> leaves;
  std::vector<std::byte*> at;
  if (Status status = Place(args, results, stream, leaves, at); !status.ok()) return ToError(status);

  std::vector<Lane> lanes = Lanes(turn, leaves, at, *parsed, shares, stream);
  for (Lane& lane : lanes) {
    if (lane.runner.scratch_bytes() == 0) continue;
    const std::optional<void*> allocated = scratch.Allocate(lane.runner.scratch_bytes(), 256);
    if (!allocated) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "messages: no memory for their scratch");
    lane.scratch = static_cast<std::byte*>(*allocated);
  }
  nccl::Communicators& ranks = *turn.part->communicators;
  std::string attributes = std::string(messages) + ";" + std::string(reduction) + ";" + std::to_string(iteration);
  for (const double share : shares) attributes += ";" + std::to_string(share);
  const nccl::CallNumber number{++turn.part->calls, Print(leaves, attributes)};
  const std::string name = std::string(what) + " #" + std::to_string(number.number) + " over '" + std::string(group) +
                           "' (" + FormatBytes(Layout(leaves).payload()) + ")";
  const nccl::Attendance attendance{name, ranks.rank(), ranks.ranks(), turn.members, turn.part->board.get(), number};
  return ToError(Run(ranks, attendance, lanes, stream, turn.part->deadline_s));
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
                           .Attr<std::string_view>("reduction")
                           .Attr<ffi::Span<const double>>("shares"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame) { return kMessages(frame); }

}  // namespace jaxcomm

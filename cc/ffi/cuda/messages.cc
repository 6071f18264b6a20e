// The custom call "jaxcomm_messages": an all-reduce by sends and receives between processes that NCCL connects.
//
// It waits for its own end: what a call that failed has left in its results must not be taken for a sum. So XLA's
// thread of the device is held for as long as the call takes.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cc/ffi/values.h"
#include "cc/kernels/cuda/reduce.h"
#include "cc/messages/runner.h"
#include "cc/nccl/board.h"
#include "cc/nccl/communicators.h"
#include "cc/nccl/wire.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using nccl::Clock;

// One device's part in a group of ranks.
struct Part {
  std::unique_ptr<nccl::Communicators> communicators;
  std::unique_ptr<nccl::Board> board;  // null: no rank can be named
  double deadline_s;
  std::mutex issue;  // calls are issued one after the other, in the order in which XLA runs them
  uint64_t calls = 0;
};

// Live until the process ends: XLA's threads may still call when static destructors run.
struct Runtime {
  std::mutex mutex;
  std::map<std::pair<std::string, uint32_t>, std::shared_ptr<const Messages>> messages;  // by name and rank
  std::map<std::pair<std::string, int>, std::shared_ptr<Part>> parts;                    // by group and device
};

Runtime& TheRuntime() {
  static Runtime* runtime = std::make_unique<Runtime>().release();
  return *runtime;
}

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

// What a call needs of what was registered and joined before.
struct Call {
  std::shared_ptr<Part> part;
  nccl::Comm comm;
  std::shared_ptr<const Messages> messages;
};

// `iteration` is that of the period of groups whose turn it is; below 0: the call is of all ranks.
Result<Call> Find(int device, std::string_view group, int64_t iteration, std::string_view messages) {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto part = TheRuntime().parts.find({std::string(group), device});
  if (part == TheRuntime().parts.end()) {
    return InvalidArgument("messages: device " + std::to_string(device) + " has not joined group '" +
                           std::string(group) + "'");
  }
  nccl::Communicators& all = *part->second->communicators;
  if (Status status = all.Check(); !status.ok()) return status;
  uint32_t rank = all.rank(), ranks = all.ranks();
  if (iteration >= 0) {
    if (static_cast<size_t>(iteration) >= all.num_partitions()) {
      return InvalidArgument("messages: iteration " + std::to_string(iteration) + " of " +
                             std::to_string(all.num_partitions()) + " in the period");
    }
    const std::vector<uint32_t> members = all.members(static_cast<size_t>(iteration));
    rank = static_cast<uint32_t>(std::find(members.begin(), members.end(), rank) - members.begin());
    ranks = static_cast<uint32_t>(members.size());
  }
  const auto mine = TheRuntime().messages.find({std::string(messages), rank});
  if (mine == TheRuntime().messages.end()) {
    return InvalidArgument("messages: " + std::string(messages) + " are not registered for rank " +
                           std::to_string(rank));
  }
  if (mine->second->ranks() != ranks) {
    return InvalidArgument("messages: they are for " + std::to_string(mine->second->ranks()) +
                           " ranks; the group has " + std::to_string(ranks));
  }
  return Call{part->second, iteration < 0 ? all.rail(0) : all.group(static_cast<size_t>(iteration)), mine->second};
}

ffi::Error AllReduce(cudaStream_t stream, ffi::ScratchAllocator scratch, ffi::RemainingArgs args,
                     ffi::RemainingRets results, std::string_view what, std::string_view group, int64_t iteration,
                     std::string_view messages, std::string_view reduction) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return ToError(CudaError("the device", error));
  }
  const Result<Call> found = Find(device, group, iteration, messages);
  if (!found.ok()) return ToError(found.status());
  const Call& call = found.value();
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

// 0, or 1 and the message, cut to what fits.
int64_t Answer(const Status& status, char* error, int64_t size) {
  if (status.ok()) return 0;
  std::snprintf(error, static_cast<size_t>(size), "%s", status.message().c_str());
  return 1;
}

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommMessages(XLA_FFI_CallFrame* frame) { return kMessages(frame); }

// NCCL's version, such as 23201; 0: there is none, and `error` says why.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_version(const char* path, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  return Answer(found.status(), error, size) == 0 ? found.value()->version : 0;
}

// Fills in the id of a new group, of 128 bytes.
JAXCOMM_EXPORT int64_t jaxcomm_nccl_id(const char* path, char* id, char* error, int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  nccl::Id made;
  const nccl::Outcome outcome = found.value()->GetUniqueId(&made);
  if (outcome != nccl::kSuccess) return Answer(found.value()->Error("making an id", outcome, nullptr), error, size);
  std::memcpy(id, made.bytes, sizeof(made.bytes));
  return 0;
}

// Makes a device a rank of a group. `modules` are lines, one per rail, and `ids` their ids one after the other.
// `partitions` holds the group of each rank for so many iterations. `board`: a file of this host's ranks, or "".
JAXCOMM_EXPORT int64_t jaxcomm_nccl_join(const char* path, const char* group, int device, uint32_t ranks, uint32_t rank,
                                         const char* modules, const char* ids, const uint32_t* partitions,
                                         uint32_t num_partitions, const char* board, double deadline_s, char* error,
                                         int64_t size) {
  const Result<const nccl::Library*> found = nccl::Library::Open(path);
  if (!found.ok()) return Answer(found.status(), error, size);
  nccl::Membership membership{ranks, rank, {}, {}};
  std::istringstream lines(modules);
  for (std::string module; std::getline(lines, module);) {
    nccl::RailId rail{module, {}};
    std::memcpy(rail.id.bytes, ids + membership.rails.size() * sizeof(rail.id.bytes), sizeof(rail.id.bytes));
    membership.rails.push_back(std::move(rail));
  }
  for (uint32_t i = 0; i < num_partitions; ++i) {
    membership.partitions.emplace_back(partitions + i * ranks, partitions + (i + 1) * ranks);
  }
  auto part = std::make_shared<Part>();
  part->deadline_s = deadline_s;
  if (*board != '\0') {
    Result<std::unique_ptr<nccl::Board>> opened = nccl::Board::Open(board, ranks);
    if (!opened.ok()) return Answer(opened.status(), error, size);
    part->board = std::move(opened.value());
    part->board->Arrive(rank, 0);
  }
  int before = 0;
  cudaGetDevice(&before);
  if (const cudaError_t set = cudaSetDevice(device); set != cudaSuccess) {
    return Answer(CudaError("choosing the device", set), error, size);
  }
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s));
  Result<std::unique_ptr<nccl::Communicators>> made =
      nccl::Communicators::Create(*found.value(), std::move(membership), deadline);
  cudaSetDevice(before);
  if (!made.ok()) return Answer(made.status(), error, size);
  part->communicators = std::move(made.value());
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().parts[{group, device}] = std::move(part);
  return 0;
}

// Ends a device's part in a group; calls that still run fail.
JAXCOMM_EXPORT void jaxcomm_nccl_leave(const char* group, int device) {
  std::shared_ptr<Part> gone;
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().parts.find({group, device});
  if (found == TheRuntime().parts.end()) return;
  gone = std::move(found->second);
  TheRuntime().parts.erase(found);
}

// Hands in the messages of one rank, under the schedule's name.
JAXCOMM_EXPORT int64_t jaxcomm_register_messages(const char* name, const char* words, int64_t bytes, char* error,
                                                 int64_t size) {
  std::vector<uint32_t> aligned(static_cast<size_t>(bytes) / sizeof(uint32_t));
  std::memcpy(aligned.data(), words, aligned.size() * sizeof(uint32_t));
  Result<Messages> decoded = Messages::Decode(aligned.data(), aligned.size());
  if (!decoded.ok()) return Answer(decoded.status(), error, size);
  const uint32_t rank = decoded.value().rank();
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().messages[{name, rank}] = std::make_shared<const Messages>(std::move(decoded.value()));
  return 0;
}

}  // namespace jaxcomm

// The custom call "jaxcomm_virtual": an all-reduce of an array's rows, as if each were a rank's, by the fused executor.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cc/executor/cuda/virtual_ranks.h"
#include "cc/executor/stats.h"
#include "cc/ffi/values.h"
#include "cc/program/registry.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using fused::VirtualRanks;
using Stream = ffi::PlatformStream<cudaStream_t>;

// Live until the process ends: XLA's threads may still call when static destructors run.
struct Runtime {
  ProgramRegistry programs;
  Stats stats;
  std::atomic<double> deadline{60.0};
  std::atomic<int64_t> recorded{0};
  std::mutex mutex;
  std::vector<std::weak_ptr<VirtualRanks>> all;
};

Runtime& TheRuntime() {
  static Runtime* runtime = std::make_unique<Runtime>().release();
  return *runtime;
}

// What XLA keeps for each call site of each executable.
struct VirtualSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string plan;
  std::shared_ptr<const Program> program;
  Reduction reduction = Reduction::kSum;
  std::mutex mutex;
  std::map<int, std::shared_ptr<VirtualRanks>> on;  // by device
};
ffi::TypeId VirtualSite::id = {};
ffi::TypeInfo VirtualSite::info = ffi::MakeTypeInfo<VirtualSite>();

ffi::ErrorOr<std::unique_ptr<VirtualSite>> Instantiate(std::string_view plan, std::string_view program,
                                                       std::string_view reduction) {
  const auto invalid = [](const std::string& what) { return ffi::Unexpected(ToError(InvalidArgument(what))); };
  auto site = std::make_unique<VirtualSite>();
  site->plan = plan;
  site->program = TheRuntime().programs.Find(std::string(program));
  if (!site->program) return invalid("virtual: program " + std::string(program) + " is not registered");
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return invalid("virtual: unknown reduction '" + std::string(reduction) + "'");
  site->reduction = *parsed;
  return site;
}

// The ranks on the stream's device, made when they are first asked for.
Result<std::shared_ptr<VirtualRanks>> Here(VirtualSite& site, cudaStream_t stream, int64_t bytes) {
  int device = 0;
  const cudaError_t error = cudaStreamGetDevice(stream, &device);
  if (error != cudaSuccess) return Status(Code::kInternal, std::string("virtual: ") + cudaGetErrorString(error));
  std::lock_guard<std::mutex> lock(site.mutex);
  std::shared_ptr<VirtualRanks>& ranks = site.on[device];
  if (ranks) return ranks;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  Result<std::shared_ptr<VirtualRanks>> made =
      VirtualRanks::Make({"psum", "virtual", site.plan, bytes}, site.program, TheRuntime().stats);
  cudaSetDevice(before);
  if (!made.ok()) return made.status();
  ranks = made.value();
  std::lock_guard<std::mutex> all(TheRuntime().mutex);
  TheRuntime().all.push_back(ranks);
  return ranks;
}

// So that execute allocates nothing, which it may not while it is captured.
ffi::Error Initialize(VirtualSite* site, cudaStream_t stream, ffi::AnyBuffer x, ffi::BufferR1<ffi::DataType::S32>,
                      ffi::Result<ffi::AnyBuffer>) {
  return ToError(Here(*site, stream, static_cast<int64_t>(x.size_bytes()) / site->program->ranks()).status());
}

ffi::Error Execute(VirtualSite* site, cudaStream_t stream, ffi::AnyBuffer x, ffi::BufferR1<ffi::DataType::S32> delays,
                   ffi::Result<ffi::AnyBuffer> y) {
  const std::optional<DType> dtype = ParseDType(x.element_type());
  const uint32_t ranks = site->program->ranks();
  if (!dtype) return ToError(Status(Code::kUnimplemented, "virtual: no reduction of this element type"));
  const auto dimensions = x.dimensions();
  if (dimensions.size() == 0 || dimensions[0] != ranks || delays.element_count() != ranks ||
      x.size_bytes() != y->size_bytes() || x.size_bytes() / ranks % 16 != 0) {
    return ToError(InvalidArgument("virtual: its operand must be one row of whole 16 bytes for each of " +
                                   std::to_string(ranks) + " ranks, and a delay for each"));
  }
  if (x.untyped_data() != y->untyped_data()) {
    const cudaError_t error =
        cudaMemcpyAsync(y->untyped_data(), x.untyped_data(), x.size_bytes(), cudaMemcpyDeviceToDevice, stream);
    if (error != cudaSuccess) return ffi::Error::Internal(cudaGetErrorString(error));
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess && capture == cudaStreamCaptureStatusActive) {
    ++TheRuntime().recorded;
  }
  const auto bytes = static_cast<int64_t>(x.size_bytes());
  Result<std::shared_ptr<VirtualRanks>> here = Here(*site, stream, bytes / ranks);
  if (!here.ok()) return ToError(here.status());
  return ToError(here.value()->Run({static_cast<std::byte*>(y->untyped_data()), bytes, delays.typed_data(), *dtype,
                                    site->reduction, TheRuntime().deadline.load()},
                                   stream));
}

// A stage takes all attributes or none.
XLA_FFI_DEFINE_HANDLER(
    kInstantiate, Instantiate,
    ffi::Ffi::BindInstantiate().Attr<std::string_view>("plan").Attr<std::string_view>("program").Attr<std::string_view>(
        "reduction"));
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                           .Ctx<ffi::State<VirtualSite>>()
                           .Ctx<Stream>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR1<ffi::DataType::S32>>()
                           .Ret<ffi::AnyBuffer>());
auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<VirtualSite>>()
      .Ctx<Stream>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::BufferR1<ffi::DataType::S32>>()
      .Ret<ffi::AnyBuffer>();
}
XLA_FFI_DEFINE_HANDLER(kExecute, Execute, BindExecute());
XLA_FFI_DEFINE_HANDLER(kCapture, Execute, BindExecute(), {ffi::Traits::kCmdBufferCompatible});

int64_t CopyOut(const std::string& text, char* out, int64_t capacity) {
  if (capacity > 0) out[text.copy(out, static_cast<size_t>(capacity) - 1)] = '\0';
  return static_cast<int64_t>(text.size());
}

std::vector<std::shared_ptr<VirtualRanks>> All() {
  std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  std::vector<std::shared_ptr<VirtualRanks>> all;
  for (const auto& weak : TheRuntime().all) {
    if (std::shared_ptr<VirtualRanks> ranks = weak.lock()) all.push_back(std::move(ranks));
  }
  return all;
}

}  // namespace

// JAX registers targets before types, XLA wants the type first: so the type is registered when XLA first calls.
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInstantiate(XLA_FFI_CallFrame* frame) {
  static std::once_flag once;
  static XLA_FFI_Error* error = nullptr;
  std::call_once(once, [frame] {
    error = ffi::Ffi::RegisterTypeId(frame->api, "jaxcomm.VirtualSite", &VirtualSite::id, &VirtualSite::info);
  });
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }
// The same, declared fit for CUDA graphs.
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualCapture(XLA_FFI_CallFrame* frame) { return kCapture(frame); }

// Returns 0, or the length of an error message; so does the next.
JAXCOMM_EXPORT int64_t jaxcomm_fused_register(const char* name, const void* bytes, int64_t num_bytes, char* error,
                                              int64_t capacity) {
  std::vector<uint32_t> words(static_cast<size_t>(num_bytes) / sizeof(uint32_t));
  std::copy_n(static_cast<const char*>(bytes), words.size() * sizeof(uint32_t), reinterpret_cast<char*>(words.data()));
  const Status status = TheRuntime().programs.Add(name, words.data(), words.size());
  return status.ok() ? 0 : CopyOut(status.message(), error, capacity);
}

// The failure of a call that nobody was told of yet.
JAXCOMM_EXPORT int64_t jaxcomm_fused_check(char* error, int64_t capacity) {
  for (const auto& ranks : All()) {
    const Status status = ranks->Check();
    if (!status.ok()) return CopyOut(status.message(), error, capacity);
  }
  return 0;
}

JAXCOMM_EXPORT void jaxcomm_fused_set_deadline(double seconds) { TheRuntime().deadline.store(seconds); }

// How many calls were recorded into CUDA graphs; a graph that is replayed counts once.
JAXCOMM_EXPORT int64_t jaxcomm_fused_recorded() { return TheRuntime().recorded.load(); }

// As jaxcomm_stats of the core for CPUs. Waits for the devices.
JAXCOMM_EXPORT int64_t jaxcomm_fused_stats(char* out, int64_t capacity) {
  for (const auto& ranks : All()) ranks->RecordCalls();
  return CopyOut(TheRuntime().stats.Json(), out, capacity);
}

}  // namespace jaxcomm

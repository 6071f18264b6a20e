// The custom call "jaxcomm_virtual": an all-reduce of an array's rows, as if each were a rank's, by the fused executor.

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cc/ffi/values.h"
#include "cc/gpu/executor/one_process.h"
#include "cc/gpu/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using fused::Ranks;
using Stream = ffi::PlatformStream<cudaStream_t>;

// What XLA keeps for each call site of each executable.
struct VirtualSite {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::string plan;
  std::shared_ptr<const Program> program;
  Reduction reduction = Reduction::kSum;
  std::mutex mutex;
  std::map<int, std::shared_ptr<Ranks>> on;  // by device
};
ffi::TypeId VirtualSite::id = {};
ffi::TypeInfo VirtualSite::info = ffi::MakeTypeInfo<VirtualSite>();

ffi::ErrorOr<std::unique_ptr<VirtualSite>> Instantiate(std::string_view plan, std::string_view program,
                                                       std::string_view reduction) {
  const auto invalid = [](const std::string& message) { return ffi::Unexpected(ToError(InvalidArgument(message))); };
  auto site = std::make_unique<VirtualSite>();
  site->plan = plan;
  site->program = TheFusedRuntime().programs.Find(std::string(program));
  if (!site->program) return invalid("virtual: program " + std::string(program) + " is not registered");
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!parsed) return invalid("virtual: unknown reduction '" + std::string(reduction) + "'");
  site->reduction = *parsed;
  return site;
}

// The ranks on the stream's device, made when they are first asked for.
Result<std::shared_ptr<Ranks>> Here(VirtualSite& site, cudaStream_t stream, int64_t bytes) {
  int device = 0;
  const cudaError_t error = cudaStreamGetDevice(stream, &device);
  if (error != cudaSuccess) return Status(Code::kInternal, std::string("virtual: ") + cudaGetErrorString(error));
  std::lock_guard<std::mutex> lock(site.mutex);
  std::shared_ptr<Ranks>& ranks = site.on[device];
  if (ranks) return ranks;
  const std::vector<fused::DeviceKey> keys(site.program->ranks(), device);
  Result<fused::Slots> slots = fused::Slots::Find(keys, /*process=*/0);
  if (!slots.ok()) return slots.status();
  Result<std::shared_ptr<Ranks>> made =
      TheFusedRuntime().Make({"psum", "virtual", site.plan, bytes}, site.program, slots.value(),
                             std::make_unique<fused::OneProcess>(slots.value()));
  if (made.ok()) ranks = made.value();
  return made;
}

// So that execute allocates and loads nothing.
ffi::Error Initialize(VirtualSite* site, cudaStream_t stream, ffi::AnyBuffer x, ffi::BufferR1<ffi::DataType::S32>,
                      ffi::Result<ffi::AnyBuffer>) {
  Result<std::shared_ptr<Ranks>> here =
      Here(*site, stream, static_cast<int64_t>(x.size_bytes()) / site->program->ranks());
  if (!here.ok()) return ToError(here.status());
  const std::optional<DType> dtype = ParseDType(x.element_type());
  return ToError(dtype ? here.value()->Load(/*rank=*/0, *dtype, site->reduction) : Status());
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
  const auto bytes = static_cast<int64_t>(x.size_bytes()) / ranks;
  Result<std::shared_ptr<Ranks>> here = Here(*site, stream, bytes);
  if (!here.ok()) return ToError(here.status());
  return ToError(TheFusedRuntime().Run(*here.value(), /*rank=*/0,
                                       {static_cast<std::byte*>(y->untyped_data()), bytes, delays.typed_data(), *dtype,
                                        site->reduction, TheFusedRuntime().deadline.load()},
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
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<VirtualSite>>()
                           .Ctx<Stream>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR1<ffi::DataType::S32>>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error* error = RegisterState<VirtualSite>(frame, "jaxcomm.VirtualSite");
  return error != nullptr ? error : kInstantiate(frame);
}
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualInitialize(XLA_FFI_CallFrame* frame) { return kInitialize(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommVirtualExecute(XLA_FFI_CallFrame* frame) { return kExecute(frame); }

}  // namespace jaxcomm

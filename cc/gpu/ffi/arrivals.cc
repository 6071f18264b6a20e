// The custom calls "jaxcomm_arrive" and "jaxcomm_end" on GPUs; cc/ffi/handlers/arrivals.cc has their counterparts for
// CPUs. A callback that is queued on XLA's stream records the time. No kernel runs, and no thread waits for the device.
//
// The calls must not be captured into a CUDA graph.

#include "cc/ffi/arrivals.h"

#include <cuda_runtime_api.h>

#include <string>

#include "cc/base/export.h"
#include "cc/ffi/values.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

void RecordArrival(void* device) { static_cast<DeviceArrivals*>(device)->Arrive(); }
void RecordEnd(void* device) { static_cast<DeviceArrivals*>(device)->End(); }

ffi::Error Fail(const char* what, cudaError_t outcome) {
  return ToError(Status(Code::kInternal, std::string(what) + ": " + cudaGetErrorString(outcome)));
}

// Copies the operands to the results. Queues the callback on the stream unless `device` is null, which means that this
// device's arrivals are not recorded.
ffi::Error Queue(cudaStream_t stream, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                 cudaHostFn_t callback, DeviceArrivals* device) {
  if (args.size() != rets.size()) return ToError(InvalidArgument("arrivals: operands and results differ in number"));
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer from = *args.get<ffi::AnyBuffer>(i), to = **rets.get<ffi::AnyBuffer>(i);
    if (from.untyped_data() == to.untyped_data() || from.size_bytes() == 0) continue;
    const cudaError_t outcome =
        cudaMemcpyAsync(to.untyped_data(), from.untyped_data(), from.size_bytes(), cudaMemcpyDeviceToDevice, stream);
    if (outcome != cudaSuccess) return Fail("the copy of an operand", outcome);
  }
  if (device == nullptr) return ffi::Error::Success();
  const cudaError_t outcome = cudaLaunchHostFunc(stream, callback, device);
  return outcome == cudaSuccess ? ffi::Error::Success() : Fail("the record of an arrival", outcome);
}

ffi::Error Arrive(int32_t device, cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key,
                  std::string_view about) {
  return Queue(stream, args, rets, RecordArrival, TheArrivals().Device(key, about, device));
}

ffi::Error End(int32_t device, cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key) {
  return Queue(stream, args, rets, RecordEnd, TheArrivals().Find(key, device));
}

XLA_FFI_DEFINE_HANDLER(kArrive, Arrive,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("key")
                           .Attr<std::string_view>("about"));
XLA_FFI_DEFINE_HANDLER(kEnd, End,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("key"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommArrive(XLA_FFI_CallFrame* frame) { return kArrive(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommEnd(XLA_FFI_CallFrame* frame) { return kEnd(frame); }

}  // namespace jaxcomm

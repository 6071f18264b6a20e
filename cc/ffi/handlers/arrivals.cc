// The custom calls "jaxcomm_arrive" and "jaxcomm_end" return their operands. They stand before and after a collective
// that XLA runs, and record the device's arrival at the collective and the collective's end. cc/gpu/ffi/arrivals.cc has
// their counterparts for GPUs.

#include "cc/ffi/arrivals.h"

#include "cc/base/export.h"
#include "cc/ffi/handlers/buffers.h"
#include "cc/ffi/values.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

ffi::Error Arrive(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key,
                  std::string_view about) {
  if (args.size() != rets.size()) return ToError(InvalidArgument("arrive: operands and results differ in number"));
  HandOn(args, rets);
  if (DeviceArrivals* const found = TheArrivals().Device(key, about, device)) found->Arrive();
  return ffi::Error::Success();
}

ffi::Error End(int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t key) {
  if (args.size() != rets.size()) return ToError(InvalidArgument("end: operands and results differ in number"));
  HandOn(args, rets);
  if (DeviceArrivals* const found = TheArrivals().Find(key, device)) found->End();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kArrive, Arrive,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("key")
                           .Attr<std::string_view>("about"));
XLA_FFI_DEFINE_HANDLER(kEnd, End,
                       ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets().Attr<int64_t>("key"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommArrive(XLA_FFI_CallFrame* frame) { return kArrive(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommEnd(XLA_FFI_CallFrame* frame) { return kEnd(frame); }

}  // namespace jaxcomm

// The custom call "jaxcomm_delay": hands its operands on, as many seconds later as the last of them says.

#include <chrono>
#include <cmath>
#include <cstring>

#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

Status HandOn(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, float& seconds) {
  if (args.size() != rets.size() + 1) return InvalidArgument("delay: it takes its results' operands and the seconds");
  const auto wait = args.get<ffi::BufferR0<ffi::DataType::F32>>(rets.size());
  if (!wait.has_value()) return InvalidArgument("delay: the seconds must be one float32");
  seconds = *wait->typed_data();
  for (size_t i = 0; i < rets.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    const ffi::AnyBuffer result = **rets.get<ffi::AnyBuffer>(i);
    if (result.size_bytes() != operand.size_bytes()) return InvalidArgument("delay: operand and result differ in size");
    if (result.untyped_data() != operand.untyped_data()) {
      std::memcpy(result.untyped_data(), operand.untyped_data(), operand.size_bytes());
    }
  }
  return Status();
}

ffi::Future Delay(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  ffi::Promise promise;
  ffi::Future future(promise);
  float seconds = 0;
  const Status status = HandOn(args, rets, seconds);
  if (!status.ok()) {
    promise.SetError(ToError(status));
  } else if (!(seconds > 0) || !std::isfinite(seconds)) {
    promise.SetAvailable();
  } else {
    TheExecutor().timer().After(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<float>(seconds)),
        [promise] { TheExecutor().threads().Run([promise]() mutable { promise.SetAvailable(); }); });
  }
  return future;
}

XLA_FFI_DEFINE_HANDLER(kDelay, Delay, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDelay(XLA_FFI_CallFrame* frame) { return kDelay(frame); }

}  // namespace jaxcomm

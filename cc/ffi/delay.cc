// The custom call "jaxcomm_delay": hands its operand on, as many seconds later as its second operand says.

#include <chrono>
#include <cmath>
#include <cstring>

#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

ffi::Future Delay(ffi::AnyBuffer operand, ffi::BufferR0<ffi::DataType::F32> seconds,
                  ffi::Result<ffi::AnyBuffer> result) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const float wait = *seconds.typed_data();
  if (result->untyped_data() != operand.untyped_data()) {
    std::memcpy(result->untyped_data(), operand.untyped_data(), operand.size_bytes());
  }
  if (!(wait > 0) || !std::isfinite(wait)) {
    promise.SetAvailable();
    return future;
  }
  TheExecutor().timer().After(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<float>(wait)),
      [promise] { TheExecutor().threads().Run([promise]() mutable { promise.SetAvailable(); }); });
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kDelay, Delay,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::BufferR0<ffi::DataType::F32>>().Ret<ffi::AnyBuffer>());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDelay(XLA_FFI_CallFrame* frame) { return kDelay(frame); }

}  // namespace jaxcomm

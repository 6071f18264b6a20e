// The custom call "jaxcomm_delay" returns its operands after a delay. The last operand is the delay in seconds.

#include <chrono>
#include <cstring>
#include <string>

#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

// The longest allowed delay, one day. No test needs a longer delay, and adding one day to a time point cannot overflow.
constexpr float kMaxSeconds = 86400;

Status HandOn(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, float& seconds) {
  if (args.size() != rets.size() + 1) return InvalidArgument("delay: needs one operand per result, then the seconds");
  const auto wait = args.get<ffi::BufferR0<ffi::DataType::F32>>(rets.size());
  if (!wait.has_value()) return InvalidArgument("delay: the seconds must be one float32");
  seconds = *wait->typed_data();
  if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
    return InvalidArgument("delay: seconds is " + std::to_string(seconds) +
                           ".\n  Cure: delay by 0 to 86400 seconds, which is a day.");
  }
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

Status Start(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, const ffi::Promise& promise) {
  float seconds = 0;
  if (Status status = HandOn(args, rets, seconds); !status.ok()) return status;
  if (seconds == 0) {
    Keep(promise)(Status());
  } else {
    const auto delay = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<float>(seconds));
    TheExecutor().Delay(delay, Keep(promise));
  }
  return Status();
}

ffi::Future Delay(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Begin([&](const ffi::Promise& promise) { return Start(args, rets, promise); });
}

XLA_FFI_DEFINE_HANDLER(kDelay, Delay, ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommDelay(XLA_FFI_CallFrame* frame) { return kDelay(frame); }

}  // namespace jaxcomm

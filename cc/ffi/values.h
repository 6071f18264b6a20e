// Converts a Status to an XLA error, and XLA's types to ours.
#pragma once

#include <mutex>
#include <optional>
#include <string_view>

#include "cc/base/export.h"
#include "cc/base/status.h"
#include "cc/executor/calls/kind.h"
#include "cc/kernels/types.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

xla::ffi::Error ToError(const Status& status);

// Registers the type of a call site's state, unless an earlier call has registered the type. Returns null, or an error
// that the caller owns. JAX registers targets before types, but XLA needs the type first. So each target calls this
// function when XLA first calls the target.
template <typename State>
XLA_FFI_Error* RegisterState(const XLA_FFI_CallFrame* frame, std::string_view name) {
  static std::mutex mutex;
  static bool registered = false;
  std::lock_guard<std::mutex> lock(mutex);
  if (registered) return nullptr;
  XLA_FFI_Error* error = xla::ffi::Ffi::RegisterTypeId(frame->api, name, &State::id, &State::info);
  registered = error == nullptr;
  return error;
}

// Returns nullopt if the kernels lack this element type.
std::optional<DType> ParseDType(xla::ffi::DataType dtype);

// Reads "sum", "max" or "min".
std::optional<Reduction> ParseReduction(std::string_view text);

// Reads "all_reduce", "reduce_scatter" or "all_gather".
std::optional<Kind> ParseKind(std::string_view text);

}  // namespace jaxcomm

// How a Status becomes an XLA error, and XLA's types ours.
#pragma once

#include <optional>
#include <string_view>

#include "cc/base/status.h"
#include "cc/kernels/types.h"
#include "xla/ffi/api/ffi.h"

// What the Python side looks up in the shared objects; everything else is hidden.
#define JAXCOMM_EXPORT extern "C" __attribute__((visibility("default")))

namespace jaxcomm {

xla::ffi::Error ToError(const Status& status);

// None: the kernels do not have this element type.
std::optional<DType> ParseDType(xla::ffi::DataType dtype);

// "sum", "max" or "min".
std::optional<Reduction> ParseReduction(std::string_view text);

}  // namespace jaxcomm

// Checks the operands of the custom calls on segments of a gradient, for every platform. Sizes are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/ffi/values.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {

// Returns the type if it is a float of 16, 32 or 64 bits, otherwise nullopt. Only such floats have an importance and a
// scale.
inline std::optional<DType> ParseFloat(xla::ffi::DataType dtype) {
  const std::optional<DType> parsed = ParseDType(dtype);
  const bool is_float =
      parsed == DType::kF16 || parsed == DType::kBF16 || parsed == DType::kF32 || parsed == DType::kF64;
  return is_float ? parsed : std::nullopt;
}

inline Status NoFloat(const char* name) {
  return Status(Code::kUnimplemented, std::string(name) + ": gradients must be floats of 16, 32 or 64 bits");
}

inline size_t NumSegments(size_t bytes, size_t segment) { return (bytes + segment - 1) / segment; }

inline Status CheckImportance(DType dtype, size_t bytes, int64_t segment_bytes, size_t means) {
  const size_t width = ByteWidth(dtype);
  if (segment_bytes < static_cast<int64_t>(width) || segment_bytes % width != 0 ||
      means != NumSegments(bytes, segment_bytes)) {
    return InvalidArgument("importance: segments of " + std::to_string(segment_bytes) + " bytes do not fit");
  }
  return Status();
}

// Whether `bytes` is the size of exactly `count` segments. Divides, because the product might overflow.
inline bool HoldsSegments(size_t bytes, size_t count, int64_t segment_bytes) {
  if (segment_bytes < 1) return false;
  const size_t segment = static_cast<size_t>(segment_bytes);
  return bytes % segment == 0 && bytes / segment == count;
}

inline Status CheckPack(size_t packed_bytes, size_t count, int64_t segment_bytes) {
  if (HoldsSegments(packed_bytes, count, segment_bytes)) return Status();
  return InvalidArgument("pack: the result must have room for the chosen segments, and no more");
}

inline Status CheckUnpack(size_t packed_bytes, size_t count, int64_t segment_bytes) {
  if (HoldsSegments(packed_bytes, count, segment_bytes)) return Status();
  return InvalidArgument("unpack: the operand must hold the chosen segments, and no more");
}

inline Status CheckScale(DType dtype, size_t bytes, size_t result_bytes, int64_t segment_bytes, size_t factors) {
  if (segment_bytes < 1 || segment_bytes % ByteWidth(dtype) != 0 || result_bytes != bytes ||
      factors != NumSegments(bytes, segment_bytes)) {
    return InvalidArgument("scale: needs one factor per segment of whole elements");
  }
  return Status();
}

}  // namespace jaxcomm

#include "cc/ffi/values.h"

#include <string>

#include "cc/base/text.h"
#include "cc/ffi/kept_failures.h"

namespace jaxcomm {

xla::ffi::Error ToError(const Status& status) {
  const std::string message = "jaxcomm: " + ValidText(status.message());  // Python reads the text as UTF-8
  if (!status.ok()) TheFailures().Keep(status);
  switch (status.code()) {
    case Code::kOk:
      return xla::ffi::Error::Success();
    case Code::kInvalidArgument:
      return xla::ffi::Error::InvalidArgument(message);
    case Code::kUnimplemented:
      return xla::ffi::Error(xla::ffi::ErrorCode::kUnimplemented, message);
    case Code::kDeadlineExceeded:
      return xla::ffi::Error(xla::ffi::ErrorCode::kDeadlineExceeded, message);
    case Code::kInternal:
      return xla::ffi::Error::Internal(message);
  }
  return xla::ffi::Error::Internal(message);
}

std::optional<DType> ParseDType(xla::ffi::DataType dtype) {
  switch (dtype) {
    case xla::ffi::DataType::S8:
      return DType::kS8;
    case xla::ffi::DataType::S16:
      return DType::kS16;
    case xla::ffi::DataType::S32:
      return DType::kS32;
    case xla::ffi::DataType::S64:
      return DType::kS64;
    case xla::ffi::DataType::U8:
      return DType::kU8;
    case xla::ffi::DataType::U16:
      return DType::kU16;
    case xla::ffi::DataType::U32:
      return DType::kU32;
    case xla::ffi::DataType::U64:
      return DType::kU64;
    case xla::ffi::DataType::F16:
      return DType::kF16;
    case xla::ffi::DataType::BF16:
      return DType::kBF16;
    case xla::ffi::DataType::F32:
      return DType::kF32;
    case xla::ffi::DataType::F64:
      return DType::kF64;
    case xla::ffi::DataType::C64:
      return DType::kC64;
    case xla::ffi::DataType::C128:
      return DType::kC128;
    default:
      return std::nullopt;
  }
}

std::optional<Reduction> ParseReduction(std::string_view text) {
  if (text == "sum") return Reduction::kSum;
  if (text == "max") return Reduction::kMax;
  if (text == "min") return Reduction::kMin;
  return std::nullopt;
}

std::optional<Kind> ParseKind(std::string_view text) {
  if (text == "all_reduce") return Kind::kAllReduce;
  if (text == "reduce_scatter") return Kind::kReduceScatter;
  if (text == "all_gather") return Kind::kAllGather;
  return std::nullopt;
}

}  // namespace jaxcomm

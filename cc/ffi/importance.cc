// The custom calls that masks are made of: "jaxcomm_importance" finds what each segment of a gradient matters,
// "jaxcomm_pack" gathers the kept segments, "jaxcomm_unpack" puts them back among zeros, "jaxcomm_scale" multiplies
// each segment by a factor of its own, which drops it where that is 0.

#include "cc/kernels/importance.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cc/ffi/runtime.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using Indices = ffi::BufferR1<ffi::DataType::S32>;

// Only floating-point types have an importance.
std::optional<DType> ParseFloat(ffi::DataType dtype) {
  const std::optional<DType> parsed = ParseDType(dtype);
  return parsed && FindImportance(*parsed) != nullptr ? parsed : std::nullopt;
}

ffi::Error Guarded(const std::function<Status()>& work) {
  try {
    const Status status = work();
    return status.ok() ? ffi::Error::Success() : ToError(status);
  } catch (const std::exception& error) {
    return ToError(Status(Code::kInternal, error.what()));
  }
}

size_t NumSegments(size_t bytes, size_t segment) { return (bytes + segment - 1) / segment; }

ffi::Error Importance(ffi::AnyBuffer gradients, ffi::BufferR0<ffi::DataType::U32> seed,
                      ffi::ResultBufferR1<ffi::DataType::F32> means, ffi::ResultBufferR0<ffi::DataType::F32> median,
                      int64_t segment_bytes, int64_t stride) {
  return Guarded([&] {
    const std::optional<DType> dtype = ParseFloat(gradients.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "importance: gradients must be floats of 16, 32 or 64 bits");
    const size_t width = ByteWidth(*dtype), elements = gradients.element_count();
    if (segment_bytes < static_cast<int64_t>(width) || segment_bytes % width != 0 || stride < 1 ||
        stride > std::numeric_limits<uint32_t>::max() ||
        means->element_count() != NumSegments(elements * width, segment_bytes)) {
      return InvalidArgument("importance: segments of " + std::to_string(segment_bytes) + " bytes with a stride of " +
                             std::to_string(stride) + " do not fit");
    }
    std::vector<uint32_t> bins(kBins);
    FindImportance (*dtype)(static_cast<const std::byte*>(gradients.untyped_data()), elements,
                            static_cast<size_t>(segment_bytes) / width, static_cast<uint32_t>(stride),
                            *seed.typed_data(), means->typed_data(), bins.data());
    *median->typed_data() = LowerMedian(bins.data());
    return Status();
  });
}

// Whether so many bytes are so many whole segments; it divides, as the product might overflow.
bool HoldsSegments(size_t bytes, size_t count, int64_t segment_bytes) {
  if (segment_bytes < 1) return false;
  const size_t segment = static_cast<size_t>(segment_bytes);
  return bytes % segment == 0 && bytes / segment == count;
}

// Calls copy(segment's first byte, its bytes, place in the packed buffer) for each kept segment, in their order.
Status ForEachKept(const char* name, size_t bytes, size_t segment, const Indices& kept,
                   const std::function<void(size_t, size_t, size_t)>& copy) {
  int64_t before = -1;
  for (size_t i = 0; i < kept.element_count(); ++i) {
    const int64_t index = kept.typed_data()[i];
    if (index <= before || static_cast<size_t>(index) >= NumSegments(bytes, segment)) {
      return InvalidArgument(std::string(name) + ": kept[" + std::to_string(i) + "] is " + std::to_string(index) +
                             "; indices must ascend, below " + std::to_string(NumSegments(bytes, segment)));
    }
    before = index;
    const size_t begin = static_cast<size_t>(index) * segment;
    copy(begin, std::min(segment, bytes - begin), i * segment);
  }
  return Status();
}

ffi::Error Pack(ffi::AnyBuffer gradients, Indices kept, ffi::Result<ffi::AnyBuffer> packed, int64_t segment_bytes) {
  return Guarded([&] {
    const size_t segment = static_cast<size_t>(segment_bytes);
    if (!HoldsSegments(packed->size_bytes(), kept.element_count(), segment_bytes)) {
      return InvalidArgument("pack: the result must have room for the kept segments, and no more");
    }
    const std::byte* from = static_cast<const std::byte*>(gradients.untyped_data());
    std::byte* to = static_cast<std::byte*>(packed->untyped_data());
    return ForEachKept("pack", gradients.size_bytes(), segment, kept, [&](size_t at, size_t length, size_t place) {
      std::memcpy(to + place, from + at, length);
      std::memset(to + place + length, 0, segment - length);
    });
  });
}

ffi::Error Unpack(ffi::AnyBuffer packed, Indices kept, ffi::Result<ffi::AnyBuffer> gradients, int64_t segment_bytes) {
  return Guarded([&] {
    const size_t segment = static_cast<size_t>(segment_bytes), bytes = gradients->size_bytes();
    if (!HoldsSegments(packed.size_bytes(), kept.element_count(), segment_bytes)) {
      return InvalidArgument("unpack: the operand must hold the kept segments, and no more");
    }
    const std::byte* from = static_cast<const std::byte*>(packed.untyped_data());
    std::byte* to = static_cast<std::byte*>(gradients->untyped_data());
    size_t filled = 0;
    const Status status = ForEachKept("unpack", bytes, segment, kept, [&](size_t at, size_t length, size_t place) {
      std::memset(to + filled, 0, at - filled);
      std::memcpy(to + at, from + place, length);
      filled = at + length;
    });
    std::memset(to + filled, 0, bytes - filled);
    return status;
  });
}

ffi::Error Scale(ffi::AnyBuffer gradients, ffi::BufferR1<ffi::DataType::F32> factors,
                 ffi::Result<ffi::AnyBuffer> result, int64_t segment_bytes) {
  return Guarded([&] {
    const size_t segment = static_cast<size_t>(segment_bytes), bytes = gradients.size_bytes();
    const std::optional<DType> dtype = ParseFloat(gradients.element_type());
    if (!dtype) return Status(Code::kUnimplemented, "scale: gradients must be floats of 16, 32 or 64 bits");
    if (segment_bytes < 1 || segment % ByteWidth(*dtype) != 0 || result->size_bytes() != bytes ||
        factors.element_count() != NumSegments(bytes, segment)) {
      return InvalidArgument("scale: it takes one factor per segment of whole elements");
    }
    const ScaleFn scale = FindScale(*dtype);
    std::byte* to = static_cast<std::byte*>(result->untyped_data());
    if (to != gradients.untyped_data()) std::memcpy(to, gradients.untyped_data(), bytes);
    for (size_t at = 0, s = 0; at < bytes; at += segment, ++s) {
      const float factor = factors.typed_data()[s];
      const size_t length = std::min(segment, bytes - at);
      if (factor == 0) {
        std::memset(to + at, 0, length);  // also where the gradient is not finite
      } else if (factor != 1) {
        scale(to + at, length / ByteWidth(*dtype), factor);
      }
    }
    return Status();
  });
}

XLA_FFI_DEFINE_HANDLER(kImportance, Importance,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::DataType::U32>>()
                           .Ret<ffi::BufferR1<ffi::DataType::F32>>()
                           .Ret<ffi::BufferR0<ffi::DataType::F32>>()
                           .Attr<int64_t>("segment_bytes")
                           .Attr<int64_t>("stride"));
XLA_FFI_DEFINE_HANDLER(
    kPack, Pack,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<Indices>().Ret<ffi::AnyBuffer>().Attr<int64_t>("segment_bytes"));
XLA_FFI_DEFINE_HANDLER(
    kUnpack, Unpack,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<Indices>().Ret<ffi::AnyBuffer>().Attr<int64_t>("segment_bytes"));
XLA_FFI_DEFINE_HANDLER(
    kScale, Scale,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::BufferR1<ffi::DataType::F32>>().Ret<ffi::AnyBuffer>().Attr<int64_t>(
        "segment_bytes"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommImportance(XLA_FFI_CallFrame* frame) { return kImportance(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommPack(XLA_FFI_CallFrame* frame) { return kPack(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommUnpack(XLA_FFI_CallFrame* frame) { return kUnpack(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommScale(XLA_FFI_CallFrame* frame) { return kScale(frame); }

}  // namespace jaxcomm

// Custom calls for importance masks. "jaxcomm_importance" measures each segment of a gradient. "jaxcomm_pack" gathers
// chosen segments into one buffer. "jaxcomm_unpack" puts the chosen segments back and fills all other segments with
// zeros. "jaxcomm_scale" multiplies each segment by a factor; the factor 0 drops the segment.

#include "cc/ffi/segments.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "cc/kernels/importance.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using Indices = ffi::BufferR1<ffi::DataType::S32>;

ffi::Error Guarded(const std::function<Status()>& work) {
  try {
    const Status status = work();
    return status.ok() ? ffi::Error::Success() : ToError(status);
  } catch (const std::exception& error) {
    return ToError(Status(Code::kInternal, error.what()));
  }
}

ffi::Error Importance(ffi::AnyBuffer gradients, ffi::ResultBufferR1<ffi::DataType::F32> means, int64_t segment_bytes) {
  return Guarded([&] {
    const std::optional<DType> dtype = ParseFloat(gradients.element_type());
    if (!dtype) return NoFloat("importance");
    const Status fits = CheckImportance(*dtype, gradients.size_bytes(), segment_bytes, means->element_count());
    if (!fits.ok()) return fits;
    FindImportance (*dtype)(static_cast<const std::byte*>(gradients.untyped_data()), gradients.element_count(),
                            static_cast<size_t>(segment_bytes) / ByteWidth(*dtype), means->typed_data());
    return Status();
  });
}

// Calls copy(begin, length, position in the packed buffer) for each chosen segment, in order.
Status ForEachChosen(const char* name, size_t bytes, size_t segment, const Indices& indices,
                     const std::function<void(size_t, size_t, size_t)>& copy) {
  int64_t before = -1;
  for (size_t i = 0; i < indices.element_count(); ++i) {
    const int64_t index = indices.typed_data()[i];
    if (index <= before || static_cast<size_t>(index) >= NumSegments(bytes, segment)) {
      return InvalidArgument(std::string(name) + ": indices[" + std::to_string(i) + "] is " + std::to_string(index) +
                             "; indices must ascend, below " + std::to_string(NumSegments(bytes, segment)));
    }
    before = index;
    const size_t begin = static_cast<size_t>(index) * segment;
    copy(begin, std::min(segment, bytes - begin), i * segment);
  }
  return Status();
}

ffi::Error Pack(ffi::AnyBuffer gradients, Indices indices, ffi::Result<ffi::AnyBuffer> packed, int64_t segment_bytes) {
  return Guarded([&] {
    const size_t segment = static_cast<size_t>(segment_bytes);
    const Status fits = CheckPack(packed->size_bytes(), indices.element_count(), segment_bytes);
    if (!fits.ok()) return fits;
    const std::byte* from = static_cast<const std::byte*>(gradients.untyped_data());
    std::byte* to = static_cast<std::byte*>(packed->untyped_data());
    return ForEachChosen("pack", gradients.size_bytes(), segment, indices,
                         [&](size_t at, size_t length, size_t position) {
                           std::memcpy(to + position, from + at, length);
                           std::memset(to + position + length, 0, segment - length);
                         });
  });
}

ffi::Error Unpack(ffi::AnyBuffer packed, Indices indices, ffi::Result<ffi::AnyBuffer> gradients,
                  int64_t segment_bytes) {
  return Guarded([&] {
    const size_t segment = static_cast<size_t>(segment_bytes), bytes = gradients->size_bytes();
    const Status fits = CheckUnpack(packed.size_bytes(), indices.element_count(), segment_bytes);
    if (!fits.ok()) return fits;
    const std::byte* from = static_cast<const std::byte*>(packed.untyped_data());
    std::byte* to = static_cast<std::byte*>(gradients->untyped_data());
    size_t filled = 0;
    const Status status =
        ForEachChosen("unpack", bytes, segment, indices, [&](size_t at, size_t length, size_t position) {
          std::memset(to + filled, 0, at - filled);
          std::memcpy(to + at, from + position, length);
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
    if (!dtype) return NoFloat("scale");
    const Status fits = CheckScale(*dtype, bytes, result->size_bytes(), segment_bytes, factors.element_count());
    if (!fits.ok()) return fits;
    const ScaleFn scale = FindScale(*dtype);
    std::byte* to = static_cast<std::byte*>(result->untyped_data());
    if (to != gradients.untyped_data()) std::memcpy(to, gradients.untyped_data(), bytes);
    for (size_t at = 0, s = 0; at < bytes; at += segment, ++s) {
      const float factor = factors.typed_data()[s];
      const size_t length = std::min(segment, bytes - at);
      if (factor == 0) {
        std::memset(to + at, 0, length);  // 0 times a gradient that is not finite would be NaN
      } else if (factor != 1) {
        scale(to + at, length / ByteWidth(*dtype), factor);
      }
    }
    return Status();
  });
}

XLA_FFI_DEFINE_HANDLER(
    kImportance, Importance,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::BufferR1<ffi::DataType::F32>>().Attr<int64_t>("segment_bytes"));
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

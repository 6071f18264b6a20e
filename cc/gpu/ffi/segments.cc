// The custom calls that masks are made of, on GPUs: the same as in cc/ffi/segments.cc, except that "importance" has a
// third result, in which it counts the sample, so that nothing is allocated while a step runs.

#include "cc/ffi/segments.h"

#include <cuda_runtime_api.h>

#include "cc/gpu/kernels/importance.h"
#include "cc/gpu/kernels/segments.h"
#include "cc/kernels/importance.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;
using Indices = ffi::BufferR1<ffi::DataType::S32>;
using Stream = ffi::PlatformStream<cudaStream_t>;

ffi::Error Importance(cudaStream_t stream, ffi::AnyBuffer gradients, ffi::BufferR0<ffi::DataType::U32> seed,
                      ffi::ResultBufferR1<ffi::DataType::F32> means, ffi::ResultBufferR0<ffi::DataType::F32> median,
                      ffi::ResultBufferR1<ffi::DataType::U32> bins, int64_t segment_bytes, int64_t stride) {
  const std::optional<DType> dtype = ParseFloat(gradients.element_type());
  if (!dtype) return ToError(NoFloat("importance"));
  const Status fits = CheckImportance(*dtype, gradients.size_bytes(), segment_bytes, stride, means->element_count());
  if (!fits.ok()) return ToError(fits);
  if (bins->element_count() != kBins) {
    return ToError(InvalidArgument("importance: it counts the sample in " + std::to_string(kBins) + " bins"));
  }
  return ToError(cuda::Importance(*dtype, gradients.untyped_data(), gradients.size_bytes(), segment_bytes,
                                  static_cast<uint32_t>(stride), seed.typed_data(), means->typed_data(),
                                  median->typed_data(), bins->typed_data(), stream));
}

ffi::Error Pack(cudaStream_t stream, ffi::AnyBuffer gradients, Indices indices, ffi::Result<ffi::AnyBuffer> packed,
                int64_t segment_bytes) {
  const Status fits = CheckPack(packed->size_bytes(), indices.element_count(), segment_bytes);
  if (!fits.ok()) return ToError(fits);
  return ToError(cuda::PackSegments(gradients.untyped_data(), gradients.size_bytes(), segment_bytes,
                                    indices.typed_data(), indices.element_count(), packed->untyped_data(), stream));
}

ffi::Error Unpack(cudaStream_t stream, ffi::AnyBuffer packed, Indices indices, ffi::Result<ffi::AnyBuffer> gradients,
                  int64_t segment_bytes) {
  const Status fits = CheckUnpack(packed.size_bytes(), indices.element_count(), segment_bytes);
  if (!fits.ok()) return ToError(fits);
  return ToError(cuda::UnpackSegments(packed.untyped_data(), indices.typed_data(), indices.element_count(),
                                      segment_bytes, gradients->untyped_data(), gradients->size_bytes(), stream));
}

ffi::Error Scale(cudaStream_t stream, ffi::AnyBuffer gradients, ffi::BufferR1<ffi::DataType::F32> factors,
                 ffi::Result<ffi::AnyBuffer> result, int64_t segment_bytes) {
  const std::optional<DType> dtype = ParseFloat(gradients.element_type());
  if (!dtype) return ToError(NoFloat("scale"));
  const size_t bytes = gradients.size_bytes();
  const Status fits = CheckScale(*dtype, bytes, result->size_bytes(), segment_bytes, factors.element_count());
  if (!fits.ok()) return ToError(fits);
  return ToError(cuda::ScaleSegments(*dtype, gradients.untyped_data(), bytes, segment_bytes, factors.typed_data(),
                                     result->untyped_data(), stream));
}

XLA_FFI_DEFINE_HANDLER(kImportance, Importance,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::DataType::U32>>()
                           .Ret<ffi::BufferR1<ffi::DataType::F32>>()
                           .Ret<ffi::BufferR0<ffi::DataType::F32>>()
                           .Ret<ffi::BufferR1<ffi::DataType::U32>>()
                           .Attr<int64_t>("segment_bytes")
                           .Attr<int64_t>("stride"));
XLA_FFI_DEFINE_HANDLER(
    kPack, Pack,
    ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Arg<Indices>().Ret<ffi::AnyBuffer>().Attr<int64_t>(
        "segment_bytes"));
XLA_FFI_DEFINE_HANDLER(
    kUnpack, Unpack,
    ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Arg<Indices>().Ret<ffi::AnyBuffer>().Attr<int64_t>(
        "segment_bytes"));
XLA_FFI_DEFINE_HANDLER(kScale, Scale,
                       ffi::Ffi::Bind()
                           .Ctx<Stream>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR1<ffi::DataType::F32>>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("segment_bytes"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommImportance(XLA_FFI_CallFrame* frame) { return kImportance(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommPack(XLA_FFI_CallFrame* frame) { return kPack(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommUnpack(XLA_FFI_CallFrame* frame) { return kUnpack(frame); }
JAXCOMM_EXPORT XLA_FFI_Error* JaxcommScale(XLA_FFI_CallFrame* frame) { return kScale(frame); }

}  // namespace jaxcomm

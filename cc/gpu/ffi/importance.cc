// The custom call "jaxcomm_importance" on GPUs: the same as in cc/ffi/segments.cc, except that it has a third result,
// in which it counts the sample, so that nothing is allocated while a step runs. XLA scales and packs segments there.

#include "cc/gpu/kernels/importance.h"

#include <cuda_runtime_api.h>

#include "cc/ffi/segments.h"
#include "cc/kernels/importance.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

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

XLA_FFI_DEFINE_HANDLER(kImportance, Importance,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::BufferR0<ffi::DataType::U32>>()
                           .Ret<ffi::BufferR1<ffi::DataType::F32>>()
                           .Ret<ffi::BufferR0<ffi::DataType::F32>>()
                           .Ret<ffi::BufferR1<ffi::DataType::U32>>()
                           .Attr<int64_t>("segment_bytes")
                           .Attr<int64_t>("stride"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommImportance(XLA_FFI_CallFrame* frame) { return kImportance(frame); }

}  // namespace jaxcomm

// The custom call "jaxcomm_importance" on GPUs; cc/ffi/handlers/segments.cc is its counterpart for CPUs. On GPUs XLA
// itself scales and packs segments.

#include "cc/gpu/kernels/importance.h"

#include <cuda_runtime_api.h>

#include "cc/ffi/segments.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

ffi::Error Importance(cudaStream_t stream, ffi::AnyBuffer gradients, ffi::ResultBufferR1<ffi::DataType::F32> means,
                      int64_t segment_bytes) {
  const std::optional<DType> dtype = ParseFloat(gradients.element_type());
  if (!dtype) return ToError(NoFloat("importance"));
  const Status fits = CheckImportance(*dtype, gradients.size_bytes(), segment_bytes, means->element_count());
  if (!fits.ok()) return ToError(fits);
  return ToError(cuda::Importance(*dtype, gradients.untyped_data(), gradients.size_bytes(), segment_bytes,
                                  means->typed_data(), stream));
}

XLA_FFI_DEFINE_HANDLER(kImportance, Importance,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::BufferR1<ffi::DataType::F32>>()
                           .Attr<int64_t>("segment_bytes"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommImportance(XLA_FFI_CallFrame* frame) { return kImportance(frame); }

}  // namespace jaxcomm

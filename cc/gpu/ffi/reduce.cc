// The custom call "jaxcomm_reduce" on GPUs: one result from up to 64 operands like it.

#include "cc/gpu/kernels/reduce.h"

#include <cuda_runtime_api.h>

#include <string_view>

#include "cc/ffi/values.h"
#include "xla/ffi/api/ffi.h"

namespace jaxcomm {
namespace {

namespace ffi = xla::ffi;

ffi::Error ReduceAll(cudaStream_t stream, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> result,
                     std::string_view reduction) {
  const std::optional<DType> dtype = ParseDType(result->element_type());
  const std::optional<Reduction> parsed = ParseReduction(reduction);
  if (!dtype || !parsed) return ToError(Status(Code::kUnimplemented, "reduce: no such reduction of such elements"));
  if (args.size() > cuda::kMaxSources) return ToError(InvalidArgument("reduce: it takes at most 64 operands"));
  cuda::Sources sources = {{}, args.size()};
  for (size_t i = 0; i < args.size(); ++i) {
    const ffi::AnyBuffer operand = *args.get<ffi::AnyBuffer>(i);
    if (operand.element_type() != result->element_type() || operand.size_bytes() != result->size_bytes()) {
      return ToError(InvalidArgument("reduce: operand " + std::to_string(i) + " differs from the result"));
    }
    sources.buffers[i] = operand.untyped_data();
  }
  return ToError(cuda::Reduce(*dtype, *parsed, sources, result->untyped_data(), result->size_bytes(), stream));
}

XLA_FFI_DEFINE_HANDLER(kReduce, ReduceAll,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<std::string_view>("reduction"));

}  // namespace

JAXCOMM_EXPORT XLA_FFI_Error* JaxcommReduce(XLA_FFI_CallFrame* frame) { return kReduce(frame); }

}  // namespace jaxcomm

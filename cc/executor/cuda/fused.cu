#include <string>

#include "cc/executor/cuda/fused.h"
#include "cc/executor/cuda/hands.cuh"

namespace jaxcomm::fused {
namespace {

constexpr unsigned kThreads = 512;

template <typename E, Reduction kReduction>
__global__ void __launch_bounds__(kThreads, 1) FusedKernel(const __grid_constant__ Arguments arguments) {
  __shared__ Shared shared;
  Hands<E, kReduction> hands(arguments, shared);
  hands.Begin();
  hands.End(RunRow(hands, arguments.table, hands.rank(), hands.call(), arguments.timeout));
}

template <Reduction kReduction>
const void* Kernel(DType dtype) {
  const void* kernel = nullptr;
  cuda::VisitReduced<kReduction>(dtype, [&kernel](auto element) {
    kernel = reinterpret_cast<const void*>(&FusedKernel<decltype(element), kReduction>);
  });
  return kernel;
}

}  // namespace

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream) {
  const void* kernel = reduction == Reduction::kSum   ? Kernel<Reduction::kSum>(dtype)
                       : reduction == Reduction::kMax ? Kernel<Reduction::kMax>(dtype)
                                                      : Kernel<Reduction::kMin>(dtype);
  if (kernel == nullptr) return Status(Code::kUnimplemented, "complex numbers have no order, so no max or min");
  // All blocks must run at once: each may wait for any other.
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  const cudaError_t error =
      cudaLaunchCooperativeKernel(kernel, dim3(arguments.rows, ranks_here), dim3(kThreads), parameters, 0, stream);
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string("the fused kernel was not launched: ") + cudaGetErrorString(error));
}

}  // namespace jaxcomm::fused

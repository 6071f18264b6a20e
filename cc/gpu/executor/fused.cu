#include "cc/gpu/executor/block_ops.cuh"
#include "cc/gpu/executor/device.h"
#include "cc/gpu/executor/fused.h"

namespace jaxcomm::fused {
namespace {

constexpr unsigned kThreads = 512;

template <typename E, Reduction kReduction>
__global__ void __launch_bounds__(kThreads, 1) FusedKernel(const __grid_constant__ Arguments arguments) {
  __shared__ Shared shared;
  BlockOps<E, kReduction> ops(arguments, shared);
  ops.Begin();
  ops.End(RunBlock(ops, arguments.table, ops.rank(), ops.call(), arguments.timeout));
}

__global__ void ReadClockKernel(uint64_t* now) { *now = GlobalTimer(); }

template <Reduction kReduction>
const void* Kernel(DType dtype) {
  const void* kernel = nullptr;
  cuda::VisitReduced<kReduction>(dtype, [&kernel](auto element) {
    kernel = reinterpret_cast<const void*>(&FusedKernel<decltype(element), kReduction>);
  });
  return kernel;
}

const void* Kernel(DType dtype, Reduction reduction) {
  return reduction == Reduction::kSum   ? Kernel<Reduction::kSum>(dtype)
         : reduction == Reduction::kMax ? Kernel<Reduction::kMax>(dtype)
                                        : Kernel<Reduction::kMin>(dtype);
}

Status Unordered() { return Status(Code::kUnimplemented, "complex numbers have no order, so no max or min"); }

}  // namespace

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream) {
  const void* kernel = Kernel(dtype, reduction);
  if (kernel == nullptr) return Unordered();
  // All blocks must run at once, because each block may wait for any other block.
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  return CudaError("the fused kernel was not launched",
                   cudaLaunchCooperativeKernel(kernel, dim3(arguments.num_blocks, ranks_here), dim3(kThreads),
                                               parameters, 0, stream));
}

Status LoadFused(DType dtype, Reduction reduction) {
  const void* kernel = Kernel(dtype, reduction);
  if (kernel == nullptr) return Unordered();
  cudaFuncAttributes attributes;
  return CudaError("the fused kernel was not loaded", cudaFuncGetAttributes(&attributes, kernel));
}

cudaError_t LaunchReadClock(uint64_t* now, cudaStream_t stream) {
  ReadClockKernel<<<1, 1, 0, stream>>>(now);
  return cudaGetLastError();
}

}  // namespace jaxcomm::fused

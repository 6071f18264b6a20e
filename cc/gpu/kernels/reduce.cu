#include "cc/gpu/kernels/combine.cuh"
#include "cc/gpu/kernels/launch.h"
#include "cc/gpu/kernels/reduce.h"

namespace jaxcomm::cuda {
namespace {

template <typename E, Reduction kReduction>
__global__ void __launch_bounds__(kBlockThreads, 2)
    ReduceKernel(const __grid_constant__ Sources sources, void* to, int64_t bytes) {
  __shared__ std::byte* bases[kMaxSources + 1];
  __shared__ uint32_t ranks[kMaxSources + 1];
  const auto count = static_cast<uint32_t>(sources.count);
  for (uint32_t i = threadIdx.x; i <= count; i += blockDim.x) {
    bases[i] = static_cast<std::byte*>(i < count ? const_cast<void*>(sources.buffers[i]) : to);
    ranks[i] = i;
  }
  __syncthreads();
  const Slice slice = SliceOf(bytes, /*chunk=*/0, /*chunks=*/1, blockIdx.x, gridDim.x);
  CombineSlice<E, kReduction>(bases, {ranks, count}, {ranks + count, 1}, slice);
}

template <Reduction kReduction>
bool Launch(DType dtype, const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  return VisitReduced<kReduction>(dtype, [&](auto element) {
    ReduceKernel<decltype(element), kReduction>
        <<<std::min(Blocks(bytes / (4 * kPackBytes)), 1024u), kBlockThreads, 0, stream>>>(sources, to,
                                                                                          static_cast<int64_t>(bytes));
  });
}

}  // namespace

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  if (!IsAligned(to) || !std::all_of(sources.buffers, sources.buffers + sources.count, IsAligned)) {
    return InvalidArgument("reduce: a buffer does not begin at a multiple of 16 bytes");
  }
  if (bytes == 0) return Status();
  const bool known = reduction == Reduction::kSum   ? Launch<Reduction::kSum>(dtype, sources, to, bytes, stream)
                     : reduction == Reduction::kMax ? Launch<Reduction::kMax>(dtype, sources, to, bytes, stream)
                                                    : Launch<Reduction::kMin>(dtype, sources, to, bytes, stream);
  if (!known) return Status(Code::kUnimplemented, "reduce: complex numbers have no order");
  return Launched("reduce");
}

}  // namespace jaxcomm::cuda

#include "cc/gpu/kernels/importance.h"
#include "cc/gpu/kernels/importance_body.h"
#include "cc/gpu/kernels/launch.h"

namespace jaxcomm::cuda {
namespace {

template <typename E, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads, 4)  // without this bound registers spill
    ImportanceKernel(Gradient<E> gradient, size_t segments, float* means) {
  using Body = ImportanceBody<E>;
  constexpr unsigned kLanes = Body::kLanes;
  __shared__ typename E::Wide sums[kBlockThreads / kLanes][Body::kSums];
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned together = ((1u << kLanes) - 1) << (threadIdx.x % 32 - lane);
  typename E::Wide* const shared = sums[threadIdx.x / kLanes];
  const GridThread grid = ThisGridThread();
  for (size_t s = grid.thread / kLanes; s < segments; s += grid.threads / kLanes) {
    Body::template Accumulate<kAligned>(gradient, s, lane, shared);
    __syncwarp(together);
    if (lane == 0) means[s] = Body::Mean(gradient, s, shared);
    __syncwarp(together);
  }
}

template <typename E>
void Launch(const void* gradients, size_t bytes, size_t segment_bytes, float* means, cudaStream_t stream) {
  using Stored = typename E::Stored;
  const Gradient<E> gradient = {static_cast<const Stored*>(gradients), bytes / sizeof(Stored),
                                segment_bytes / sizeof(Stored)};
  const size_t segments = (bytes + segment_bytes - 1) / segment_bytes;
  const unsigned blocks = Blocks(segments * ImportanceBody<E>::kLanes);
  const bool aligned = IsAligned(gradients) && segment_bytes % kPackBytes == 0;
  const auto kernel = aligned ? ImportanceKernel<E, true> : ImportanceKernel<E, false>;
  kernel<<<blocks, kBlockThreads, 0, stream>>>(gradient, segments, means);
}

}  // namespace

Status Importance(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, float* means,
                  cudaStream_t stream) {
  const bool known = bytes == 0 || VisitFloat(dtype, [&](auto element) {
                       Launch<decltype(element)>(gradients, bytes, segment_bytes, means, stream);
                     });
  if (!known) return Status(Code::kUnimplemented, "importance: gradients must be floats of 16, 32 or 64 bits");
  return Launched("importance");
}

}  // namespace jaxcomm::cuda

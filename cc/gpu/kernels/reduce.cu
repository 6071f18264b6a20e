#include "cc/gpu/kernels/launch.h"
#include "cc/gpu/kernels/reduce.h"

namespace jaxcomm::cuda {
namespace {

template <typename E, Reduction kReduction, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads, kBlocksTogether)
    ReduceKernel(const __grid_constant__ Sources sources, typename E::Stored* to, size_t elements) {
  ReduceBody<E, kReduction>::template Run<kAligned>(sources, to, elements, ThisGridThread());
}

template <typename E, Reduction kReduction>
void Launch(const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  using Body = ReduceBody<E, kReduction>;
  using Stored = typename E::Stored;
  const size_t elements = bytes / sizeof(Stored);
  const bool aligned = IsAligned(to) && std::all_of(sources.buffers, sources.buffers + sources.count, IsAligned);
  const unsigned blocks = Blocks(aligned ? elements / (Body::kElements * Body::kPacks) : elements);
  const auto kernel = aligned ? ReduceKernel<E, kReduction, true> : ReduceKernel<E, kReduction, false>;
  kernel<<<blocks, kBlockThreads, 0, stream>>>(sources, static_cast<Stored*>(to), elements);
}

template <Reduction kReduction>
bool Launch(DType dtype, const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  return VisitReduced<kReduction>(
      dtype, [&](auto element) { Launch<decltype(element), kReduction>(sources, to, bytes, stream); });
}

}  // namespace

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  if (sources.count < 1 || sources.count > kMaxSources) {
    return InvalidArgument("reduce: " + std::to_string(sources.count) + " sources; it takes 1 to " +
                           std::to_string(kMaxSources));
  }
  if (bytes == 0) return Status();
  const bool known = reduction == Reduction::kSum   ? Launch<Reduction::kSum>(dtype, sources, to, bytes, stream)
                     : reduction == Reduction::kMax ? Launch<Reduction::kMax>(dtype, sources, to, bytes, stream)
                                                    : Launch<Reduction::kMin>(dtype, sources, to, bytes, stream);
  if (!known) return Status(Code::kUnimplemented, "reduce: complex numbers have no order");
  return Launched("reduce");
}

}  // namespace jaxcomm::cuda

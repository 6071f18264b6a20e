#include "cc/kernels/cuda/reduce.h"

#include "cc/kernels/cuda/launch.h"

namespace jaxcomm::cuda {
namespace {

template <typename E, Reduction kReduction, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads)
    ReduceKernel(const __grid_constant__ Sources sources, typename E::Stored* to, size_t elements) {
  ReduceBody<E, kReduction>::template Run<kAligned>(sources, to, elements, ThisPlace());
}

template <typename E, Reduction kReduction>
void Launch(const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  using Body = ReduceBody<E, kReduction>;
  using Stored = typename E::Stored;
  const size_t elements = bytes / sizeof(Stored);
  Stored* const result = static_cast<Stored*>(to);
  const bool aligned = IsAligned(to) && std::all_of(sources.buffers, sources.buffers + sources.count, IsAligned);
  if (aligned) {
    const unsigned blocks = Blocks(elements / (Body::kElements * Body::kPacks));
    ReduceKernel<E, kReduction, true><<<blocks, kBlockThreads, 0, stream>>>(sources, result, elements);
  } else {
    ReduceKernel<E, kReduction, false><<<Blocks(elements), kBlockThreads, 0, stream>>>(sources, result, elements);
  }
}

}  // namespace

Status Reduce(DType dtype, Reduction reduction, const Sources& sources, void* to, size_t bytes, cudaStream_t stream) {
  if (sources.count < 1 || sources.count > kMaxSources) {
    return InvalidArgument("reduce: " + std::to_string(sources.count) + " sources; it takes 1 to " +
                           std::to_string(kMaxSources));
  }
  if (bytes == 0) return Status();
  const bool known = VisitElement(dtype, reduction == Reduction::kSum, [&](auto element) {
    using E = decltype(element);
    switch (reduction) {
      case Reduction::kSum:
        if constexpr (!std::is_signed_v<typename E::Stored> || std::is_floating_point_v<typename E::Stored>) {
          Launch<E, Reduction::kSum>(sources, to, bytes, stream);
        }
        break;
      case Reduction::kMax:
        Launch<E, Reduction::kMax>(sources, to, bytes, stream);
        break;
      case Reduction::kMin:
        Launch<E, Reduction::kMin>(sources, to, bytes, stream);
        break;
    }
    return true;
  });
  if (!known) return Status(Code::kUnimplemented, "reduce: complex numbers have no order");
  return Launched("reduce");
}

}  // namespace jaxcomm::cuda

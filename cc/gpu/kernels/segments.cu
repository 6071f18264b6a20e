#include "cc/gpu/kernels/launch.h"
#include "cc/gpu/kernels/segments.h"
#include "cc/gpu/kernels/segments_body.h"

namespace jaxcomm::cuda {
namespace {

static_assert(kLanes == 32, "a warp");

// Calls work(unit, lane) for every unit of this warp.
template <typename Work>
__device__ __forceinline__ void ForEachUnit(size_t units, Work work) {
  const GridThread grid = ThisGridThread();
  for (size_t unit = grid.thread / kLanes; unit < units; unit += grid.threads / kLanes) {
    work(unit, grid.thread % kLanes);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kBlockThreads)
    PackKernel(const std::byte* gradients, Segments segments, const int32_t* indices, size_t units, std::byte* packed) {
  ForEachUnit(units,
              [&](size_t unit, size_t lane) { PackTile<kAligned>(gradients, segments, indices, packed, unit, lane); });
}

template <bool kAligned>
__global__ void __launch_bounds__(kBlockThreads)
    UnpackKernel(const std::byte* packed, const int32_t* indices, size_t count, Segments segments, size_t units,
                 std::byte* gradients) {
  ForEachUnit(units, [&](size_t unit, size_t lane) {
    UnpackTile<kAligned>(packed, indices, count, segments, gradients, unit, lane);
  });
}

template <typename E, bool kAligned>
__global__ void __launch_bounds__(kBlockThreads)
    ScaleKernel(const typename E::Stored* gradients, Segments segments, const float* factors, size_t units,
                typename E::Stored* result) {
  ForEachUnit(units, [&](size_t unit, size_t lane) {
    ScaleTile<E, kAligned>(gradients, segments, factors, result, unit, lane);
  });
}

bool Aligned(const void* a, const void* b, size_t segment_bytes) {
  return IsAligned(a) && IsAligned(b) && segment_bytes % kPackBytes == 0;
}

}  // namespace

Status PackSegments(const void* gradients, size_t bytes, size_t segment_bytes, const int32_t* indices, size_t count,
                    void* packed, cudaStream_t stream) {
  if (count == 0) return Status();
  const Segments segments = {bytes, segment_bytes};
  const size_t units = count * segments.TilesOfOne();
  const auto kernel = Aligned(gradients, packed, segment_bytes) ? PackKernel<true> : PackKernel<false>;
  kernel<<<Blocks(units * kLanes), kBlockThreads, 0, stream>>>(static_cast<const std::byte*>(gradients), segments,
                                                               indices, units, static_cast<std::byte*>(packed));
  return Launched("pack");
}

Status UnpackSegments(const void* packed, const int32_t* indices, size_t count, size_t segment_bytes, void* gradients,
                      size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return Status();
  const Segments segments = {bytes, segment_bytes};
  const size_t units = segments.Count() * segments.TilesOfOne();
  const auto kernel = Aligned(gradients, packed, segment_bytes) ? UnpackKernel<true> : UnpackKernel<false>;
  kernel<<<Blocks(units * kLanes), kBlockThreads, 0, stream>>>(static_cast<const std::byte*>(packed), indices, count,
                                                               segments, units, static_cast<std::byte*>(gradients));
  return Launched("unpack");
}

Status ScaleSegments(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, const float* factors,
                     void* result, cudaStream_t stream) {
  if (bytes == 0) return Status();
  const Segments segments = {bytes, segment_bytes};
  const size_t units = segments.Count() * segments.TilesOfOne();
  const bool aligned = Aligned(gradients, result, segment_bytes);
  const bool known = VisitFloat(dtype, [&](auto element) {
    using E = decltype(element);
    using Stored = typename E::Stored;
    const auto kernel = aligned ? ScaleKernel<E, true> : ScaleKernel<E, false>;
    kernel<<<Blocks(units * kLanes), kBlockThreads, 0, stream>>>(static_cast<const Stored*>(gradients), segments,
                                                                 factors, units, static_cast<Stored*>(result));
  });
  if (!known) return Status(Code::kUnimplemented, "scale: gradients must be floats of 16, 32 or 64 bits");
  return Launched("scale");
}

}  // namespace jaxcomm::cuda

#include <cub/block/block_scan.cuh>

#include "cc/gpu/kernels/importance.h"
#include "cc/gpu/kernels/importance_body.h"
#include "cc/gpu/kernels/launch.h"

namespace jaxcomm::cuda {
namespace {

// Magnitudes of one distribution fall into few bins, whose counters all SMs would share: each SM counts in its own.
constexpr unsigned kThreads = 512;
constexpr unsigned kBinBytes = kBins * sizeof(uint32_t);

template <typename E, bool kAligned, bool kOwnBins>
__global__ void __launch_bounds__(kThreads, kOwnBins ? 1 : 2)  // or it spills
    ImportanceKernel(Gradient<E> gradient, size_t segments, const uint32_t* seed, float* means, uint32_t* all_bins) {
  using Body = ImportanceBody<E>;
  constexpr unsigned kLanes = Body::kLanes;
  __shared__ typename E::Wide sums[kThreads / kLanes][Body::kSums];
  extern __shared__ uint32_t own_bins[];
  uint32_t* const bins = kOwnBins ? own_bins : all_bins;
  if constexpr (kOwnBins) {
    for (unsigned i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
  }
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned together = ((1u << kLanes) - 1) << (threadIdx.x % 32 - lane);
  typename E::Wide* const shared = sums[threadIdx.x / kLanes];
  const GridThread grid = ThisGridThread();
  for (size_t s = grid.thread / kLanes; s < segments; s += grid.threads / kLanes) {
    Body::template Accumulate<kAligned>(gradient, s, lane, *seed, bins, shared);
    __syncwarp(together);
    if (lane == 0) means[s] = Body::Mean(gradient, s, shared);
    __syncwarp(together);
  }
  if constexpr (kOwnBins) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kBins; i += kThreads) {
      if (bins[i] != 0) atomicAdd(all_bins + i, bins[i]);
    }
  }
}

// One block; every thread scans as many neighbouring bins.
constexpr unsigned kScanThreads = 512;
__global__ void __launch_bounds__(kScanThreads) MedianKernel(const uint32_t* bins, float* median) {
  using Scan = cub::BlockScan<uint64_t, kScanThreads>;
  __shared__ typename Scan::TempStorage scratch;
  constexpr unsigned kCount = kBins / kScanThreads;
  const unsigned first = threadIdx.x * kCount;
  uint64_t mine = 0, before, total;
  JAXCOMM_UNROLL_4 for (unsigned i = 0; i < kCount; ++i) mine += bins[first + i];
  Scan(scratch).ExclusiveSum(mine, before, total);
  if (threadIdx.x == 0 && total == 0) *median = 0;
  MedianAmong(bins, first, kCount, before, total, median);
}

// With a block for each SM; on GPUs whose SMs have no room for the bins, with a thread for each lane. What fails here
// is CUDA's last error.
template <typename E, bool kAligned>
void Launch(const Gradient<E>& gradient, size_t segments, const uint32_t* seed, float* means, uint32_t* bins,
            cudaStream_t stream) {
  const auto own = ImportanceKernel<E, kAligned, true>;
  int device = 0, sms = 0, room = 0;
  cudaFuncAttributes attributes = {};
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaFuncGetAttributes(&attributes, own);
  const unsigned blocks = Blocks(segments * ImportanceBody<E>::kLanes, kThreads);
  if (attributes.sharedSizeBytes + kBinBytes > static_cast<size_t>(room)) {
    ImportanceKernel<E, kAligned, false><<<blocks, kThreads, 0, stream>>>(gradient, segments, seed, means, bins);
    return;
  }
  cudaFuncSetAttribute(own, cudaFuncAttributeMaxDynamicSharedMemorySize, kBinBytes);
  own<<<std::min(blocks, static_cast<unsigned>(sms)), kThreads, kBinBytes, stream>>>(gradient, segments, seed, means,
                                                                                     bins);
}

template <typename E>
void Launch(const void* gradients, size_t bytes, size_t segment_bytes, uint32_t stride, const uint32_t* seed,
            float* means, uint32_t* bins, cudaStream_t stream) {
  using Stored = typename E::Stored;
  const Gradient<E> gradient = {static_cast<const Stored*>(gradients), bytes / sizeof(Stored),
                                segment_bytes / sizeof(Stored), stride};
  const size_t segments = (bytes + segment_bytes - 1) / segment_bytes;
  const bool aligned = IsAligned(gradients) && segment_bytes % kPackBytes == 0;
  const auto launch = aligned ? Launch<E, true> : Launch<E, false>;
  launch(gradient, segments, seed, means, bins, stream);
}

}  // namespace

Status Importance(DType dtype, const void* gradients, size_t bytes, size_t segment_bytes, uint32_t stride,
                  const uint32_t* seed, float* means, float* median, uint32_t* bins, cudaStream_t stream) {
  if (cudaMemsetAsync(bins, 0, kBins * sizeof(*bins), stream) != cudaSuccess) return Launched("importance");
  const bool known = bytes == 0 || VisitFloat(dtype, [&](auto element) {
                       Launch<decltype(element)>(gradients, bytes, segment_bytes, stride, seed, means, bins, stream);
                     });
  if (!known) return Status(Code::kUnimplemented, "importance: gradients must be floats of 16, 32 or 64 bits");
  MedianKernel<<<1, kScanThreads, 0, stream>>>(bins, median);
  return Launched("importance");
}

}  // namespace jaxcomm::cuda

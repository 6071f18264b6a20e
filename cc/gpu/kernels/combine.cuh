// Reduces one slice with the threads of a block: reads the slice from some ranks, combines the values, and stores the
// result to some ranks. Sources are combined in order, so the results equal those on CPUs bit for bit, except for the
// payload of a NaN. All data is aligned to 16 bytes.
#pragma once

#include "cc/gpu/kernels/elements.h"

namespace jaxcomm::cuda {

struct Slice {
  int64_t begin, end;  // offsets in a rank's data, in bytes
};

// Chunks have the same bounds as on CPUs (cc/executor/calls/layout.h). Blocks divide a chunk into slices of whole packs
// of 16 bytes.
__device__ __forceinline__ Slice SliceOf(int64_t bytes, uint32_t chunk, uint32_t chunks, uint32_t block_index,
                                         uint32_t num_blocks) {
  constexpr int64_t kLine = 64, kPack = kPackBytes;
  const int64_t lines = (bytes + kLine - 1) / kLine;
  const int64_t begin = min((lines * chunk + chunks - 1) / chunks * kLine, bytes);
  const int64_t end = min((lines * (chunk + 1) + chunks - 1) / chunks * kLine, bytes);
  const int64_t packs = (end - begin + kPack - 1) / kPack;
  const int64_t share = (packs + num_blocks - 1) / num_blocks * kPack;
  return {min(begin + share * block_index, end), min(begin + share * (block_index + 1), end)};
}

// Assures the compiler that a rank's data is global memory. The compiler then adds no checks for shared and local
// memory.
template <typename Stored>
__device__ __forceinline__ Stored* At(std::byte* base, int64_t offset) {
  std::byte* const at = base + offset;
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(at));
#endif
  return reinterpret_cast<Stored*>(at);
}

// The ranks that an op reads or writes.
struct RankList {
  const uint32_t* ranks;
  uint32_t size;
};

// Reduces kPacks packs. The first pack is at `at`. Each next pack is `step` bytes after the previous pack, because the
// block's other threads reduce the packs in between.
template <typename E, Reduction kReduction, int kPacks>
__device__ __forceinline__ void CombinePacks(std::byte* const* bases, const RankList& reads, const RankList& writes,
                                             int64_t at, int64_t step) {
  using Stored = typename E::Stored;
  using Pack = cuda::Pack<Stored>;
  const auto load = [&](uint32_t rank, int p) { return LoadPack(At<const Stored>(bases[rank], at + p * step)); };
  Pack packs[kPacks];
  JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) packs[p] = load(reads.ranks[0], p);
  if (reads.size > 1) {  // a single source is copied unchanged
    typename E::Wide values[kPacks][Pack::kElements];
    Pack others[kPacks];
    JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) others[p] = load(reads.ranks[1], p);  // before Widen: loads overlap
    JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) {
      JAXCOMM_UNROLL for (size_t i = 0; i < Pack::kElements; ++i) values[p][i] = E::Widen(packs[p].elements[i]);
    }
    for (uint32_t s = 1; s < reads.size; ++s) {
      if (s > 1) {
        JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) others[p] = load(reads.ranks[s], p);
      }
      JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) {
        JAXCOMM_UNROLL for (size_t i = 0; i < Pack::kElements; ++i) {
          values[p][i] = Combine<kReduction>(values[p][i], E::Widen(others[p].elements[i]));
        }
      }
    }
    JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) {
      JAXCOMM_UNROLL for (size_t i = 0; i < Pack::kElements; ++i) packs[p].elements[i] = E::Round(values[p][i]);
    }
  }
  JAXCOMM_UNROLL_4 for (uint32_t w = 0; w < writes.size; ++w) {
    JAXCOMM_UNROLL for (int p = 0; p < kPacks; ++p) {
      StorePack(packs[p], At<Stored>(bases[writes.ranks[w]], at + p * step));
    }
  }
}

template <typename E, Reduction kReduction>
__device__ void CombineSlice(std::byte* const* bases, const RankList& reads, const RankList& writes, Slice slice) {
  using Stored = typename E::Stored;
  // Chosen so that the 16 accumulators of 32 bits stay in registers.
  constexpr int kElements = Pack<Stored>::kElements;
  constexpr int kPacks = kElements >= 8 ? 2 : 4;
  const int64_t step = int64_t{blockDim.x} * kPackBytes;
  const int64_t whole = slice.end - (slice.end - slice.begin) % kPackBytes;
  int64_t at = slice.begin + int64_t{threadIdx.x} * kPackBytes;
  for (; at + (kPacks - 1) * step < whole; at += kPacks * step) {
    CombinePacks<E, kReduction, kPacks>(bases, reads, writes, at, step);
  }
  for (; at < whole; at += step) CombinePacks<E, kReduction, 1>(bases, reads, writes, at, step);
  // Reduces the last elements if the slice is not a multiple of 16 bytes.
  constexpr int64_t kWidth = int64_t{sizeof(Stored)};
  for (int64_t element = whole + threadIdx.x * kWidth; element < slice.end; element += blockDim.x * kWidth) {
    const auto load = [&](uint32_t rank) { return *At<const Stored>(bases[rank], element); };
    Stored result = load(reads.ranks[0]);
    if (reads.size > 1) {
      typename E::Wide value = E::Widen(result);
      for (uint32_t s = 1; s < reads.size; ++s) value = Combine<kReduction>(value, E::Widen(load(reads.ranks[s])));
      result = E::Round(value);
    }
    for (uint32_t w = 0; w < writes.size; ++w) *At<Stored>(bases[writes.ranks[w]], element) = result;
  }
}

}  // namespace jaxcomm::cuda

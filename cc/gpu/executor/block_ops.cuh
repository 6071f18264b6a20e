// The operations of one thread block of one rank. On devices, BlockOps is the template argument `Memory` of protocol.h.
#pragma once

#include <cuda/atomic>

#include "cc/gpu/executor/fused.h"
#include "cc/gpu/kernels/combine.cuh"

namespace jaxcomm::fused {

// Memory that the threads of a block share.
struct Shared {
  std::byte* bases[kMaxRanks];  // the data of each rank whose address was looked up
  BlockFailure failure;
  int failed;
};

#ifdef __CUDACC__
__device__ __forceinline__ uint64_t GlobalTimer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#else
uint64_t GlobalTimer();  // defined by tests
#endif

template <typename E, Reduction kReduction>
class BlockOps {
 public:
  __device__ BlockOps(const Arguments& arguments, Shared& shared)
      : args_(arguments), shared_(shared), rank_(arguments.first_rank + blockIdx.y), block_index_(blockIdx.x) {
    if (threadIdx.x == 0) {
      shared_.bases[rank_] = args_.data + args_.stride * blockIdx.y;
      shared_.failure = {};
      shared_.failed = 0;
    }
    // This rank's arrival flag holds the number of its last call. Post waits until every thread has read the flag.
    call_ = *Flag(rank_, kArrived) + 1;
  }

  __device__ uint64_t call() const { return call_; }
  __device__ uint32_t rank() const { return rank_; }

  static __device__ uint64_t Now() { return GlobalTimer(); }

  __device__ uint64_t Acquire(uint32_t rank, uint32_t flag) const {
    return Atomic(*Flag(rank, flag)).load(::cuda::memory_order_acquire);
  }

  // Posts the flag after all earlier work of the block's threads.
  __device__ void Post(uint32_t flag, uint64_t call) {
    __syncthreads();
    if (threadIdx.x == 0) Atomic(*Flag(rank_, flag)).store(call, ::cuda::memory_order_release);
  }

  // Orders this block's post before its later loads of flags. Every thread runs the fence, because every thread may
  // load flags.
  __device__ void Fence() {
    __syncthreads();
    ::cuda::atomic_thread_fence(::cuda::memory_order_seq_cst, ::cuda::thread_scope_system);
  }

  __device__ void Publish() {
    if (threadIdx.x == 0) *Address(rank_) = reinterpret_cast<uint64_t>(shared_.bases[rank_]);
  }

  __device__ void Lookup(uint32_t peer) { shared_.bases[peer] = reinterpret_cast<std::byte*>(*Address(peer)); }

  __device__ void Pause() const { __nanosleep(20); }

  // Each thread checks some of the waits. All threads return the same failure.
  template <typename Condition>
  __device__ BlockFailure All(const Wait* waits, uint32_t count, Condition condition) {
    if (count == 0) return {};
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      const BlockFailure failure = condition(waits[i]);
      if (failure.reason != Reason::kNone && atomicExch(&shared_.failed, 1) == 0) shared_.failure = failure;
    }
    __syncthreads();
    const BlockFailure failure = shared_.failure;
    __syncthreads();
    if (threadIdx.x == 0) {
      shared_.failure = {};
      shared_.failed = 0;
    }
    __syncthreads();
    return failure;
  }

  __device__ void Execute(const TableOp& op) {
    const cuda::Slice slice =
        cuda::SliceOf(args_.bytes, op.chunk, args_.table.num_chunks, block_index_, args_.num_blocks);
    const cuda::RankList reads{args_.table.ranks + op.reads.begin, op.reads.size};
    const cuda::RankList writes{args_.table.ranks + op.writes.begin, op.writes.size};
    cuda::CombineSlice<E, kReduction>(shared_.bases, reads, writes, slice);
    if (block_index_ == 0) {
      __syncthreads();
      if (threadIdx.x == 0) Clock()[1 + 2 * args_.table.num_ranks + op.index] = Now();
    }
  }

  // Fills this block's slices of the rank's own data with `no_sum`.
  __device__ void Spoil() {
    using Stored = typename E::Stored;
    Stored spoiled;
    memcpy(&spoiled, &args_.no_sum, sizeof(spoiled));  // the lower bytes, because devices are little-endian
    for (uint32_t chunk = 0; chunk < args_.table.num_chunks; ++chunk) {
      const cuda::Slice slice =
          cuda::SliceOf(args_.bytes, chunk, args_.table.num_chunks, block_index_, args_.num_blocks);
      constexpr int64_t kWidth = int64_t{sizeof(Stored)};
      for (int64_t at = slice.begin + threadIdx.x * kWidth; at < slice.end; at += blockDim.x * kWidth) {
        *cuda::At<Stored>(shared_.bases[rank_], at) = spoiled;
      }
    }
  }

  __device__ void Begin() {
    if (args_.delays != nullptr) {
      const uint64_t start = Now();
      while (Now() - start < uint64_t{1000} * static_cast<uint32_t>(args_.delays[rank_])) __nanosleep(500);
    }
    if (block_index_ != 0 || threadIdx.x != 0) return;
    if (blockIdx.y == 0) Clock()[0] = call_;
    Clock()[1 + rank_] = Now();
  }

  __device__ void End(const BlockFailure& failure) {
    if (threadIdx.x != 0) return;
    if (block_index_ == 0) Clock()[1 + args_.table.num_ranks + rank_] = Now();
    if (failure.reason == Reason::kNone) return;
    FailureRecord& record = args_.failures[size_t{rank_} * args_.num_blocks + block_index_];
    record.failure = failure;
    Atomic(record.call).store(call_, ::cuda::memory_order_release);
  }

 private:
  using Atomic = ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_system>;

  __device__ uint64_t* Flag(uint32_t rank, uint32_t flag) const {
    return args_.flags[rank] + size_t{flag} * args_.num_blocks + block_index_;
  }
  __device__ uint64_t* Address(uint32_t rank) const { return Flag(rank, args_.table.num_flags); }

  __device__ uint64_t* Clock() const {
    const size_t words = 1 + 2 * size_t{args_.table.num_ranks} + args_.clocks.num_ops;
    return args_.clocks.base + call_ % kKeptCalls * words;
  }

  const Arguments& args_;
  Shared& shared_;
  const uint32_t rank_, block_index_;
  uint64_t call_;
};

}  // namespace jaxcomm::fused

// The fused kernel without a GPU: a thread for each block of each rank, and the protocol's own source. It adds float32.

#include <sched.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "cc/gpu/executor/fused.h"

namespace jaxcomm::fused {
namespace {

// The protocol's Memory on host threads; what block_ops.cuh does, one thread for a block.
class BlockOps {
 public:
  BlockOps(const Arguments& arguments, int device, uint32_t rank, uint32_t block_index)
      : args_(arguments), device_(device), rank_(rank), block_index_(block_index) {
    bases_[rank_] = args_.data + args_.stride * (rank_ - args_.first_rank);
    call_ = __atomic_load_n(Flag(rank_, kArrived), __ATOMIC_RELAXED) + 1;
  }

  uint64_t call() const { return call_; }
  uint64_t Now() const { return fake::TheMachine().Now(device_); }
  uint64_t Acquire(uint32_t rank, uint32_t flag) const { return __atomic_load_n(Flag(rank, flag), __ATOMIC_ACQUIRE); }
  void Post(uint32_t flag, uint64_t call) { __atomic_store_n(Flag(rank_, flag), call, __ATOMIC_RELEASE); }
  // Orders like a fence, as all threads change the same word; sanitizers know no fences.
  void Fence() {
    static std::atomic<uint32_t> word{0};
    word.fetch_add(1, std::memory_order_seq_cst);
  }
  void Publish() { *Flag(rank_, args_.table.num_flags) = reinterpret_cast<uint64_t>(bases_[rank_]) - args_.origin; }
  void Lookup(uint32_t peer) {
    bases_[peer] = reinterpret_cast<std::byte*>(args_.peers[peer].origin + *Flag(peer, args_.table.num_flags));
  }
  void Pause() const { sched_yield(); }

  template <typename Condition>
  BlockFailure All(const Wait* waits, uint32_t count, Condition condition) {
    for (uint32_t i = 0; i < count; ++i) {
      const BlockFailure failure = condition(waits[i]);
      if (failure.reason != Reason::kNone) return failure;
    }
    return {};
  }

  void Execute(const TableOp& op) {
    const int64_t elements = args_.bytes / static_cast<int64_t>(sizeof(float));
    const int64_t parts = int64_t{args_.table.num_chunks} * args_.num_blocks,
                  part = int64_t{op.chunk} * args_.num_blocks + block_index_;
    const uint32_t *reads = args_.table.ranks + op.reads.begin, *writes = args_.table.ranks + op.writes.begin;
    for (int64_t i = elements * part / parts; i < elements * (part + 1) / parts; ++i) {
      float sum = At(reads[0])[i];
      for (uint32_t r = 1; r < op.reads.size; ++r) sum += At(reads[r])[i];
      for (uint32_t w = 0; w < op.writes.size; ++w) At(writes[w])[i] = sum;
    }
    if (block_index_ == 0) Clock()[1 + 2 * args_.table.num_ranks + op.index] = Now();
  }

  void Spoil() {
    const int64_t elements = args_.bytes / static_cast<int64_t>(sizeof(float)), chunks = args_.table.num_chunks;
    const auto bits = static_cast<uint32_t>(args_.no_sum);
    float spoiled;
    std::memcpy(&spoiled, &bits, sizeof(spoiled));
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t parts = chunks * args_.num_blocks, part = chunk * args_.num_blocks + block_index_;
      for (int64_t i = elements * part / parts; i < elements * (part + 1) / parts; ++i) At(rank_)[i] = spoiled;
    }
  }

  void Begin() {
    if (block_index_ != 0) return;
    if (rank_ == args_.first_rank) Clock()[0] = call_;
    Clock()[1 + rank_] = Now();
  }

  void End(const BlockFailure& failure) {
    if (block_index_ == 0) Clock()[1 + args_.table.num_ranks + rank_] = Now();
    if (failure.reason == Reason::kNone) return;
    FailureRecord& record = args_.failures[size_t{rank_} * args_.num_blocks + block_index_];
    record.failure = failure;
    __atomic_store_n(&record.call, call_, __ATOMIC_RELEASE);
  }

 private:
  float* At(uint32_t rank) const { return reinterpret_cast<float*>(bases_[rank]); }
  uint64_t* Flag(uint32_t rank, uint32_t flag) const {
    return args_.peers[rank].flags + size_t{flag} * args_.num_blocks + block_index_;
  }
  uint64_t* Clock() const {
    return args_.clocks.base + call_ % kKeptCalls * ClockWords(args_.table.num_ranks, args_.clocks.num_ops);
  }

  const Arguments& args_;
  const int device_;
  const uint32_t rank_, block_index_;
  uint64_t call_;
  std::byte* bases_[kMaxRanks] = {};
};

}  // namespace

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream) {
  int device = 0;
  cudaGetDevice(&device);
  if (stream->device != device) return Status(Code::kInternal, "launched on another device's stream");
  if (dtype != DType::kF32 || reduction != Reduction::kSum) return Status(Code::kUnimplemented, "it adds float32");
  fake::TheMachine().blocks = ranks_here * arguments.num_blocks;
  stream->Enqueue([arguments, device, ranks_here] {
    std::vector<std::thread> blocks;
    for (uint32_t i = 0; i < ranks_here * arguments.num_blocks; ++i) {
      blocks.emplace_back([&, i] {
        const uint32_t rank = arguments.first_rank + i / arguments.num_blocks;
        BlockOps ops(arguments, device, rank, i % arguments.num_blocks);
        ops.Begin();
        ops.End(RunBlock(ops, arguments.table, rank, ops.call(), arguments.timeout));
      });
    }
    for (std::thread& block : blocks) block.join();
  });
  return Status();
}

Status LoadFused(DType, Reduction) { return Status(); }

cudaError_t LaunchReadClock(uint64_t* now, cudaStream_t stream) {
  stream->Enqueue([now, device = stream->device] { *now = fake::TheMachine().Now(device); });
  return cudaSuccess;
}

}  // namespace jaxcomm::fused

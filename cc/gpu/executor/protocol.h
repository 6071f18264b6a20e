// The synchronisation of the ranks of a fused allreduce. Ranks use only flags in memory that all ranks can read.
//
//   const BlockFailure failure = RunBlock(memory, table, rank, epoch, timeout);   // one block of one rank, one call
//
// A block is one thread block's slice of every chunk. Blocks of one rank share nothing, so there is no barrier between
// blocks. Each block has its own flags, which no other block posts. A flag holds the number of the call (the epoch) in
// which it was last posted, so no flag needs a reset.
//
// A rank leaves the call only when no other rank accesses its memory any more. A rank that fails posts its failure,
// waits until the ranks that have arrived no longer access its memory, and spoils its own data. Ranks that arrive later
// find the failure before they access anything. One rank may post its arrival and then look for failures, while another
// rank posts its failure and then looks for arrivals. Both ranks need a fence between the post and the look, or each
// may miss the other's post.
//
// The template parameter `Memory` provides the flags, a clock, and the operations of a block. The kernel and the
// emulation each have a `Memory` (block_ops.cuh, emulation/), and both run this source. All threads of a block call
// RunBlock together, and `Memory` divides the work among the threads.
#pragma once

#include <cstdint>

#include "cc/gpu/executor/table.h"

#if defined(__CUDACC__)
#define JAXCOMM_DEVICE __device__ __forceinline__
#else
#define JAXCOMM_DEVICE inline
#endif

namespace jaxcomm::fused {

enum class Reason : uint32_t {
  kNone,
  kNotArrived,  // the peer did not arrive before the deadline
  kNotDone,     // the peer did not finish the op
  kPeerFailed,  // the peer gave up
  kStillThere,  // this rank gave up, but the peer may still access this rank's memory
};

struct BlockFailure {
  Reason reason = Reason::kNone;
  uint32_t peer = 0;
  uint32_t op = 0;
  uint64_t waited = 0;  // nanoseconds
};

// Waits until the peer has posted the flag or has failed, or until the timeout.
template <typename Memory>
JAXCOMM_DEVICE BlockFailure Await(Memory& memory, const Wait& wait, uint64_t epoch, uint64_t timeout) {
  const uint64_t start = memory.Now();
  for (;;) {
    const bool posted = memory.Acquire(wait.rank, wait.flag) >= epoch;
    if (posted && wait.flag != kArrived) return {};
    const bool failed = memory.Acquire(wait.rank, kFailed) >= epoch;
    if (posted && !failed) {
      memory.Lookup(wait.rank);
      return {};
    }
    const uint64_t waited = memory.Now() - start;
    if (failed) {
      // If the peer posted the flag just before it failed, the wait succeeds.
      if (wait.flag != kArrived && memory.Acquire(wait.rank, wait.flag) >= epoch) return {};
      return {Reason::kPeerFailed, wait.rank, wait.op, waited};
    }
    if (waited > timeout) {
      return {wait.flag == kArrived ? Reason::kNotArrived : Reason::kNotDone, wait.rank, wait.op, waited};
    }
    memory.Pause();
  }
}

// Runs after this rank has failed. Waits until the peer no longer accesses this rank's memory, for at most three
// timeouts. Three are enough, because a peer that arrived just before this rank's failure waits for at most two: for
// one timeout, and for a second one if the missing rank then arrives.
template <typename Memory>
JAXCOMM_DEVICE BlockFailure AwaitLeaving(Memory& memory, const Wait& wait, uint64_t epoch, uint64_t timeout) {
  const uint64_t start = memory.Now();
  for (;;) {
    if (memory.Acquire(wait.rank, kArrived) < epoch || memory.Acquire(wait.rank, wait.flag) >= epoch ||
        memory.Acquire(wait.rank, kFailed) >= epoch) {
      return {};
    }
    const uint64_t waited = memory.Now() - start;
    if (waited > 3 * timeout) return {Reason::kStillThere, wait.rank, wait.op, waited};
    memory.Pause();
  }
}

// Returns the cause of this rank's failure: a rank that has not arrived, or `failure` if all ranks have arrived. The
// peer in `failure` probably waited for the missing rank, too. Called after this rank has posted its failure, so a rank
// that arrived before the failure never counts as missing.
template <typename Memory>
JAXCOMM_DEVICE BlockFailure Cause(Memory& memory, const BlockFailure& failure, uint32_t ranks, uint64_t epoch) {
  if (failure.reason == Reason::kNotArrived) return failure;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (memory.Acquire(rank, kArrived) < epoch) return {Reason::kNotArrived, rank, failure.op, failure.waited};
  }
  return failure;
}

template <typename Memory>
JAXCOMM_DEVICE BlockFailure RunBlock(Memory& memory, const TableView& table, uint32_t rank, uint64_t epoch,
                                     uint64_t timeout) {
  const RankTable& mine = table.rank_tables[rank];
  const auto await = [&](const Wait& wait) { return Await(memory, wait, epoch, timeout); };
  memory.Publish();
  memory.Post(kArrived, epoch);
  memory.Fence();
  BlockFailure failure;
  for (uint32_t i = 0; i < mine.ops.size && failure.reason == Reason::kNone; ++i) {
    const TableOp& op = table.ops[mine.ops.begin + i];
    failure = memory.All(table.waits + op.waits.begin, op.waits.size, await);
    if (failure.reason != Reason::kNone) break;
    memory.Execute(op);
    if (op.flag != kNoFlag) memory.Post(op.flag, epoch);
  }
  const Wait* exits = table.waits + mine.exits.begin;
  if (failure.reason == Reason::kNone) failure = memory.All(exits, mine.exits.size, await);
  if (failure.reason == Reason::kNone) return failure;
  memory.Post(kFailed, epoch);
  memory.Fence();
  failure = Cause(memory, failure, table.num_ranks, epoch);
  const BlockFailure stuck =
      memory.All(exits, mine.exits.size, [&](const Wait& wait) { return AwaitLeaving(memory, wait, epoch, timeout); });
  memory.Spoil();  // a partial result must not look like a sum
  return stuck.reason == Reason::kNone ? failure : stuck;
}

}  // namespace jaxcomm::fused

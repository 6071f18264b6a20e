// How the ranks of a fused allreduce keep out of each other's way: flags in memory that all can read, and nothing else.
//
//   const BlockFailure failure = RunBlock(memory, table, rank, epoch, timeout);   // a block of a rank, one call
//
// A block is one thread block's slice of every chunk; blocks of one rank share nothing, so there is no barrier between
// blocks. Flags hold the number of the call (the epoch) in which they were last posted and only their owner's block
// posts them, so nothing needs to be reset between calls. A rank leaves when nobody touches its memory any more, also
// when it fails: then it posts its failure, waits for those that have arrived to leave, and spoils its own data; those
// that have not arrived will find the failure before they touch anything. Either fence without the other would not do:
// a rank arrives and looks for failures, while another fails and looks for arrivals.
//
// Memory is where the flags are, a clock, and the operations of a block: a kernel's (block_ops.cuh) or the emulation's,
// which runs this very source. All threads of a block call RunBlock together; Memory decides which of them do what.
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
  kNotArrived,  // the peer did not come, for whom this rank waited or another one
  kNotDone,     // the peer did not finish the op
  kPeerFailed,  // the peer gave up
  kStillThere,  // this rank gave up, but the peer may still touch its memory
};

struct BlockFailure {
  Reason reason = Reason::kNone;
  uint32_t peer = 0;
  uint32_t op = 0;
  uint64_t waited = 0;  // nanoseconds
};

// Waits until the peer has posted the flag, or will not.
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
      // Its posts before it gave up count.
      if (wait.flag != kArrived && memory.Acquire(wait.rank, wait.flag) >= epoch) return {};
      return {Reason::kPeerFailed, wait.rank, wait.op, waited};
    }
    if (waited > timeout) {
      return {wait.flag == kArrived ? Reason::kNotArrived : Reason::kNotDone, wait.rank, wait.op, waited};
    }
    memory.Pause();
  }
}

// Waits until the peer has certainly touched this rank's memory for the last time. This rank has failed. A peer that
// came just before that waits for a timeout of its own, and for another if who was missing then comes.
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

// Why this rank has failed, which waited for another that most likely waits itself, or has given up: who has not come.
// Its failure is posted, so arrivals that it overlooks now are late.
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
  memory.Spoil();  // the values there are no sums, and must not be taken for some
  return stuck.reason == Reason::kNone ? failure : stuck;
}

}  // namespace jaxcomm::fused

// Runs a fused program's protocol on one processor in a random order, and reports the first mistake.
//
//   Emulator emulator(table, /*num_blocks=*/1, Weakness::kNone);
//   const Verdict verdict = emulator.Run(seed, Lateness::kLate);   // verdict.mistake is empty if the run was correct
//
// The emulator runs the protocol's own source (protocol.h) over MemoryModel. Every block of every rank is a fiber. The
// fiber repeatedly fills its slice of the rank's buffer, runs the program and reads the result. If another fiber
// accesses the slice and no flag orders the two accesses, the emulator reports a race. The same seed gives the same
// run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cc/gpu/executor/emulation/fibers.h"
#include "cc/gpu/executor/emulation/memory_model.h"
#include "cc/gpu/executor/protocol.h"
#include "cc/gpu/executor/table.h"

namespace jaxcomm::fused {

enum class Lateness {
  kNone,
  kLate,     // in every call one rank arrives only when no other rank can proceed
  kMissing,  // in the second call, one rank arrives after the other ranks' deadline
};

struct Verdict {
  std::string mistake;    // empty if the run was correct
  uint64_t failures = 0;  // number of blocks that gave up
  uint64_t steps = 0;
};

class Emulator {
 public:
  Emulator(const Table& table, uint32_t num_blocks, Weakness weakness);

  Verdict Run(uint64_t seed, Lateness lateness);

 private:
  // The `Memory` of protocol.h for one block of one rank.
  class BlockOps;

  struct Thread {
    enum { kRuns, kParked, kHeld, kDone } state = kRuns;
    std::vector<uint32_t> polled;  // the flags loaded since the last pause
    bool overlooked = false;       // whether a polled flag has a store that is newer than the loaded value
  };

  void RunThread(uint32_t thread);
  void Check(uint32_t rank, uint32_t block_index, uint64_t epoch, const BlockFailure& failure);
  void Step();
  void Pause(uint32_t thread);
  void Wake(uint32_t flag);
  bool Unblock();
  void Fail(const std::string& mistake);
  uint32_t Missing(uint64_t epoch) const;

  uint32_t Flag(uint32_t rank, uint32_t flag, uint32_t block_index) const {
    return (rank * view_.num_flags + flag) * num_blocks_ + block_index;
  }
  // A block of a rank has one cell for each chunk, and a last cell for the address that the rank publishes.
  uint32_t Cell(uint32_t rank, uint32_t chunk, uint32_t block_index) const {
    return (rank * (view_.num_chunks + 1) + chunk) * num_blocks_ + block_index;
  }
  uint64_t Input(uint32_t cell, uint64_t epoch) const;

  const TableView view_;
  const uint32_t num_blocks_, num_threads_;
  MemoryModel model_;
  Fibers fibers_;
  std::vector<Thread> threads_;
  std::vector<uint32_t> runnable_;
  std::vector<uint64_t> values_;
  uint64_t seed_ = 0;
  Lateness lateness_ = Lateness::kNone;
  uint64_t time_ = 0;
  Verdict verdict_;
};

}  // namespace jaxcomm::fused

// Launches the fused executor: one kernel that runs a program over memory that all ranks' devices can read and write.
//
//   Arguments arguments = ...;                                              // pointers to all ranks' memory
//   Status status = LaunchFused(arguments, DType::kBF16, Reduction::kSum, /*ranks here=*/8, stream);
//
// LaunchFused returns at once. The kernel writes its errors to Arguments::failures. The memory may belong to virtual
// ranks on one device, or to several devices of one process.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/gpu/executor/failure_record.h"
#include "cc/gpu/executor/protocol.h"
#include "cc/gpu/executor/table.h"
#include "cc/kernels/types.h"

namespace jaxcomm::fused {

inline constexpr uint32_t kMaxRanks = 32;
inline constexpr uint32_t kKeptCalls = 64;  // number of latest calls whose clocks are kept

// The times of the latest kKeptCalls calls by the device's clock, in nanoseconds. The entry of a call holds the call's
// number, then the start of each rank, the end of each rank, and the end of each op.
struct Clocks {
  uint64_t* base;  // [kKeptCalls][1 + 2 * ranks + ops]
  uint32_t num_ops;
};

struct Arguments {
  TableView table;
  uint64_t* flags[kMaxRanks];  // by rank: flags [num_flags][num_blocks], then the address of the data [num_blocks]
  FailureRecord* failures;     // [ranks][num_blocks], readable by the host
  Clocks clocks;
  std::byte* data;    // the data of this device's first rank
  int64_t stride;     // bytes from the data of one rank to the data of the next rank
  int64_t bytes;      // per rank
  const int* delays;  // microseconds by which each rank is late on purpose, or null
  uint64_t timeout;   // nanoseconds
  uint64_t no_sum;    // the bits of each element after a failed call
  uint32_t first_rank;
  uint32_t num_blocks;
};

inline size_t ControlBytes(uint32_t num_flags, uint32_t num_blocks) {
  return (size_t{num_flags} + 1) * num_blocks * sizeof(uint64_t);
}

inline size_t ClockWords(uint32_t ranks, uint32_t num_ops) { return 1 + 2 * size_t{ranks} + num_ops; }

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream);

// Loads the kernel onto the current device. Without this call, the first launch loads the kernel while other ranks
// wait.
Status LoadFused(DType dtype, Reduction reduction);

// Stores the time of the device's clock in `now`, in nanoseconds.
cudaError_t LaunchReadClock(uint64_t* now, cudaStream_t stream);

}  // namespace jaxcomm::fused

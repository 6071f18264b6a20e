// Launches the fused executor: one kernel that runs a program over memory that all ranks' devices can read and write.
//
//   Arguments arguments = ...;                                              // pointers, from wherever peers come
//   Status status = LaunchFused(arguments, DType::kBF16, Reduction::kSum, /*ranks here=*/8, stream);
//
// Returns at once. Errors on the device are written to Arguments::failures. The kernel knows nothing of where
// the pointers come from: virtual ranks of one device, or devices of one process.
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
inline constexpr uint32_t kKeptCalls = 64;  // whose clocks are kept

// When things happened, by the device's clock of nanoseconds, in one call: of each rank begin and end, of each op end.
struct Clocks {
  uint64_t* base;  // [kKeptCalls][1 + 2 * ranks + ops]; the first is the call's number
  uint32_t num_ops;
};

struct Arguments {
  TableView table;
  uint64_t* flags[kMaxRanks];  // of each rank [num_flags][num_blocks], and after them, per block, its data's address
  FailureRecord* failures;     // [ranks][blocks], which the host can read
  Clocks clocks;
  std::byte* data;    // of the first rank here
  int64_t stride;     // bytes from one rank's data to the next one's
  int64_t bytes;      // of one rank
  const int* delays;  // microseconds by which each rank comes late on purpose, or null
  uint64_t timeout;   // nanoseconds
  uint64_t no_sum;    // the bits of an element of a call that has failed
  uint32_t first_rank;
  uint32_t num_blocks;
};

inline size_t ControlBytes(uint32_t num_flags, uint32_t num_blocks) {
  return (size_t{num_flags} + 1) * num_blocks * sizeof(uint64_t);
}

inline size_t ClockWords(uint32_t ranks, uint32_t num_ops) { return 1 + 2 * size_t{ranks} + num_ops; }

Status LaunchFused(const Arguments& arguments, DType dtype, Reduction reduction, uint32_t ranks_here,
                   cudaStream_t stream);

// Loads the kernel onto the current device, which its first launch would do otherwise: while others wait for it.
Status LoadFused(DType dtype, Reduction reduction);

// Stores the device's clock, in nanoseconds.
cudaError_t LaunchReadClock(uint64_t* now, cudaStream_t stream);

}  // namespace jaxcomm::fused

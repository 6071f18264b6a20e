// Reads a kernel's failure records and clocks on the host. Failures become the same errors as on CPUs. Clocks show
// which ranks were late.
//
//   Status status = FailureStatus({"psum", "data", "3f9a01c2", 16 << 20}, /*call=*/412, ranks, num_blocks, records);
//   std::optional<CallRecord> record = RecordOf(words, /*error=*/0, program);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/calls/call_site_stats.h"
#include "cc/gpu/executor/protocol.h"
#include "cc/kernels/types.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// When a block of a rank gives up, the block writes its record: `failure` first, then `call`.
struct FailureRecord {
  uint64_t call;
  BlockFailure failure;
};

// Returns the bits of each element of the result after a failed call: NaN for floats and for both parts of a complex
// number, and the largest number for integers. An element of fewer than 64 bits uses the lower bits.
inline uint64_t NoSum(DType dtype) {
  if (dtype >= DType::kU8 && dtype <= DType::kU64) return UINT64_MAX;
  const bool is_complex = dtype == DType::kC64 || dtype == DType::kC128;
  return UINT64_MAX >> (65 - 8 * ByteWidth(dtype) / (is_complex ? 2 : 1));
}

// Returns the error of a call, or ok if no block gave up in the call. `records` is [ranks][num_blocks].
Status FailureStatus(const CallName& name, uint64_t call, uint32_t ranks, uint32_t num_blocks,
                     const FailureRecord* records);

// Returns the record of a call. `words` hold the call's number, then times in nanoseconds: the start of each rank, the
// end of each rank, and the end of each op. The difference between the times of two ranks is wrong by at most `error`.
// Returns nullopt if a rank has not ended the call, or if a rank gave up before another rank arrived.
std::optional<CallRecord> RecordOf(const uint64_t* words, int64_t error, const Program& program);

}  // namespace jaxcomm::fused

// A kernel's records for the host: failures, which become errors as on CPUs, and the late ranks.
//
//   Status status = FailureStatus({"psum", "data", "3f9a01c2", 16 << 20}, /*call=*/412, ranks, num_blocks, records);
//   std::optional<CallRecord> record = RecordOf(words, /*error=*/0, program);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/call_site_stats.h"
#include "cc/gpu/executor/protocol.h"
#include "cc/kernels/types.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// The record of one block of one rank that gives up; `call` is written last.
struct FailureRecord {
  uint64_t call;
  BlockFailure failure;
};

// The bits of an element that a call that has failed leaves in place of a sum, of which a narrower one has the lower:
// NaN, also for both parts of a complex number; of integers the largest.
inline uint64_t NoSum(DType dtype) {
  if (dtype >= DType::kU8 && dtype <= DType::kU64) return UINT64_MAX;
  const bool is_complex = dtype == DType::kC64 || dtype == DType::kC128;
  return UINT64_MAX >> (65 - 8 * ByteWidth(dtype) / (is_complex ? 2 : 1));
}

// The error of a call; ok if nobody gave up in it. `records` is [ranks][num_blocks].
Status FailureStatus(const CallName& name, uint64_t call, uint32_t ranks, uint32_t num_blocks,
                     const FailureRecord* records);

// The record of a call from its clocks: its number, each rank's begin and end, each op's end, in nanoseconds that may
// be wrong by `error` between ranks. None if the call has not ended on every rank, or some gave up before others came.
std::optional<CallRecord> RecordOf(const uint64_t* words, int64_t error, const Program& program);

}  // namespace jaxcomm::fused

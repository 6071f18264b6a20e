// What the host makes of what a kernel left behind: errors as on CPUs, and records of who was late.
//
//   Status status = Explain({"psum", "data", "3f9a01c2", 16 << 20}, /*ranks=*/8, /*rows=*/16, told);
//   std::optional<CallRecord> record = ReadClocks(words, /*error=*/0, program);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/stats.h"
#include "cc/gpu/executor/protocol.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// What one row of one rank tells the host when it gives up; `call` is written last.
struct Told {
  uint64_t call;
  Failure failure;
};

struct CallName {
  std::string name, axes, plan;
  int64_t bytes;
};

// The error of a call; ok if nobody gave up in it. `told` is [ranks][rows].
Status Explain(const CallName& name, uint64_t call, uint32_t ranks, uint32_t rows, const Told* told);

// The record of a call from its clocks: its number, each rank's begin and end, each op's end, in nanoseconds that may
// be wrong by `error` between ranks. None if the call has not ended on every rank, or some gave up before others came.
std::optional<CallRecord> ReadClocks(const uint64_t* words, int64_t error, const Program& program);

}  // namespace jaxcomm::fused

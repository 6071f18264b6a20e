// The devices' clocks, which agree on nothing, by way of the host's.
//
//   Result<HostClock> clock = CompareClock(device, &word);
//   std::vector<uint64_t> words = MergeClocks(program, slots, call, clocks);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/gpu/executor/slots.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// How a device's clock differs from the host's, in nanoseconds.
struct HostClock {
  int64_t offset;  // to be added to the device's
  int64_t error;   // at most, but for the drift since
};

// `word` is the host's, and the device can write it.
Result<HostClock> CompareClock(int device, uint64_t* word);

// What a slot's block says of its ranks' calls.
struct SlotClocks {
  HostClock clock;
  std::vector<uint64_t> words;  // as Clocks::base
};

// The clocks of one call, of all ranks and ops, by the host's clock; empty if a slot has not begun it, or forgot it.
std::vector<uint64_t> MergeClocks(const Program& program, const Slots& slots, uint64_t call,
                                  const std::vector<SlotClocks>& clocks);

}  // namespace jaxcomm::fused

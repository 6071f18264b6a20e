// The devices' clocks, which agree on nothing, by way of the host's.
//
//   Result<int64_t> offset = ClockOffset(device, &word);          // from the device's clock to the host's
//   std::vector<uint64_t> words = MergeClocks(program, places, call, heads);
//
// Times of several devices are so comparable by half of what a reading takes, and by what they drift until the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/cuda/places.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// In nanoseconds. `word` is the host's, and the device can write it.
Result<int64_t> ClockOffset(int device, uint64_t* word);

// What a place's block says of its ranks' calls.
struct PlaceClocks {
  int64_t offset;
  std::vector<uint64_t> words;  // as Clocks::base
};

// The clocks of one call, of all ranks and ops, by the host's clock; empty if a place has not begun it, or forgot it.
std::vector<uint64_t> MergeClocks(const Program& program, const Places& places, uint64_t call,
                                  const std::vector<PlaceClocks>& clocks);

}  // namespace jaxcomm::fused

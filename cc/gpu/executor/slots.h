// Where the ranks of a call site live. Every process numbers the slots alike.
//
//   Result<Slots> slots = Slots::Find(/*keys=*/{0, 1, 1 << 16, 1 << 16 | 1}, /*process=*/0);
//   const Slot& slot = slots.value().all[slots.value().of_rank[3]];   // the second device of process 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// A rank's device: its process << 16 | CUDA's number of the device in that process.
using DeviceKey = int32_t;

// A device, and those ranks that it has, which are neighbours.
struct Slot {
  uint32_t process;
  int device;
  uint32_t first_rank, num_ranks;
};

struct Slots {
  std::vector<Slot> all;
  std::vector<size_t> of_rank;
  uint32_t process;          // this one
  std::vector<size_t> here;  // its slots

  static Result<Slots> Find(const std::vector<DeviceKey>& keys, uint32_t process);
};

}  // namespace jaxcomm::fused

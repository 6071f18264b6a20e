// Where the ranks of a call site live. Every process numbers the places alike.
//
//   Result<Places> places = Places::Find(/*seats=*/{0, 1, 1 << 16, 1 << 16 | 1}, /*process=*/0);
//   const Place& place = places.value().all[places.value().of_rank[3]];   // the second device of process 1
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// A rank's device: its process << 16 | CUDA's number of the device in that process.
using Seat = int32_t;

// A device, and those ranks that it has, which are neighbours.
struct Place {
  uint32_t process;
  int device;
  uint32_t first_rank, num_ranks;
};

struct Places {
  std::vector<Place> all;
  std::vector<size_t> of_rank;
  uint32_t process;          // this one
  std::vector<size_t> here;  // its places

  static Result<Places> Find(const std::vector<Seat>& seats, uint32_t process);
};

}  // namespace jaxcomm::fused

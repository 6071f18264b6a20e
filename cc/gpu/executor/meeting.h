// How the ranks of a call site come to reach each other's memory: each place gets a block, then all meet, then each
// device knows where it finds the others' blocks and data.
//
//   Result<std::byte*> block = meeting->Allocate(place, bytes);   // for each place of this process
//   Status status = meeting->Meet(filled);                        // once; all processes do
//   const View view = meeting->See(from, to);                     // from one of this process's places
//
// Nobody launches before Meet has returned without an error, which it does in all processes or in none. It may wait for
// other processes, until a deadline. Not thread-safe until then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// A place's memory, as a device of this process sees it.
struct View {
  std::byte* block;
  uint64_t origin;  // the address from which that place counts those of its operands
};

class Meeting {
 public:
  // Ends what connects the processes, after the last launch has ended here. Blocks that others may still touch live on.
  virtual ~Meeting() = default;

  virtual Result<std::byte*> Allocate(size_t place, size_t bytes) = 0;

  // `mine` says whether this process's blocks are filled; where one's are not, all get the error of one that failed.
  virtual Status Meet(const Status& mine) = 0;

  // The origin of a device's own view is also what it counts from itself.
  virtual View See(size_t from, size_t to) const = 0;

  // Whether the others reach an operand of a device of this process.
  virtual Status CheckReach(size_t place, const std::byte* data, int64_t bytes) const = 0;
};

}  // namespace jaxcomm::fused

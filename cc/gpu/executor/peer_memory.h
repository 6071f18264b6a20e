// How the ranks of a call site come to reach each other's memory: each slot gets a block, then all connect, then each
// device knows where it finds the others' blocks and data.
//
//   Result<std::byte*> block = memory->Allocate(slot, bytes);   // for each slot of this process
//   Status status = memory->Connect(filled);                         // once; all processes do
//   const PeerView view = memory->PeerViewOf(from, to);                    // from one of this process's slots
//
// Nobody launches before Connect has returned without an error, which it does in all processes or in none. It may wait
// for other processes, until a deadline. Not thread-safe until then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"

namespace jaxcomm::fused {

// A slot's memory, as a device of this process sees it.
struct PeerView {
  std::byte* block;
  uint64_t origin;  // the address from which that slot counts those of its operands
};

class PeerMemory {
 public:
  // Ends what connects the processes, after the last launch has ended here. Blocks that others may still touch live on.
  virtual ~PeerMemory() = default;

  virtual Result<std::byte*> Allocate(size_t slot, size_t bytes) = 0;

  // `mine` says whether this process's blocks are filled; where one's are not, all get the error of one that failed.
  virtual Status Connect(const Status& mine) = 0;

  // The origin of a device's own view is also what it counts from itself.
  virtual PeerView PeerViewOf(size_t from, size_t to) const = 0;

  // Whether the others reach an operand of a device of this process.
  virtual Status CheckReach(size_t slot, const std::byte* data, int64_t bytes) const = 0;
};

}  // namespace jaxcomm::fused

// The memory of a slot. A slot is a device and its ranks. All ranks of the call access the flags of this slot's ranks.
// Only the kernel on this device accesses the clocks and the program's tables.
//
//   Result<Block> block = Block::Make(device, program, table, /*ranks=*/2, num_blocks);
//   uint64_t* flags = block.value().FlagsOf(/*rank of the slot=*/1);
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/base/status.h"
#include "cc/gpu/executor/table.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

struct FreeOnDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};

struct Block {
  static Result<Block> Make(int device, const Program& program, const Table& table, uint32_t ranks,
                            uint32_t num_blocks);

  uint64_t* FlagsOf(uint32_t rank) const { return reinterpret_cast<uint64_t*>(flags + rank * bytes_of_flags); }
  // The clocks are at the start of `memory`.
  uint64_t* clocks() const { return reinterpret_cast<uint64_t*>(memory.get()); }

  std::unique_ptr<std::byte, FreeOnDevice> memory;
  std::byte* flags;
  size_t bytes_of_flags;  // per rank
  TableView tables;
};

}  // namespace jaxcomm::fused

// The memory of a slot that all ranks reach: a header, the clocks of its ranks' calls, its ranks' flags; and the
// program's tables, which only its own device reads.
//
//   const BlockLayout layout(program, table);
//   Result<TableView> tables = layout.Fill(block, table, /*ranks=*/2, header);    // on the block's device
//   uint64_t* flags = layout.FlagsOf(block, /*rank of the slot=*/1, num_blocks);     // of any process's block
//
// Processes know from the program where things are in each other's blocks. Only the number of
// thread blocks is in the header: the fewest of all headers are used, by all, so what depends on them comes last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/gpu/executor/clocks.h"
#include "cc/gpu/executor/fused.h"
#include "cc/gpu/executor/table.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// The header of a block: what the others must know of it.
struct BlockHeader {
  uint32_t num_blocks;  // thread blocks of each of its ranks, at most
  HostClock clock;
};

class BlockLayout {
 public:
  BlockLayout(const Program& program, const Table& table);

  size_t Bytes(uint32_t ranks, uint32_t num_blocks) const;

  // The header, which begins the block, and the clocks.
  size_t head_bytes() const { return flags_; }
  size_t clocks() const { return clocks_; }
  size_t clock_words() const { return clock_words_; }

  uint64_t* FlagsOf(std::byte* block, uint32_t rank, uint32_t num_blocks) const {
    return reinterpret_cast<uint64_t*>(block + flags_ + rank * ControlBytes(num_flags_, num_blocks));
  }

  // Fills a block of the current device, and returns where its tables are.
  Result<TableView> Fill(std::byte* block, const Table& table, uint32_t ranks, const BlockHeader& header) const;

 private:
  size_t TablesAt(uint32_t ranks, uint32_t num_blocks) const;

  const uint32_t num_flags_;
  const size_t clock_words_;
  size_t clocks_, flags_;
  size_t rank_tables_, ops_, ranks_, waits_, tables_bytes_;  // from where the tables begin
};

}  // namespace jaxcomm::fused

// The memory of a place that all ranks reach: a card, the clocks of its ranks' calls, its ranks' flags; and the
// program's tables, which only its own device reads.
//
//   const BlockLayout layout(program, table);
//   Result<TableView> tables = layout.Fill(block, table, /*ranks=*/2, card);    // on the block's device
//   uint64_t* flags = layout.FlagsOf(block, /*rank of the place=*/1, rows);     // of any process's block
//
// Processes know from the program where things are in each other's blocks. Only how many rows there are they must tell:
// the fewest of all cards are used, by all, so what depends on them comes last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/gpu/executor/clocks.h"
#include "cc/gpu/executor/fused.h"
#include "cc/gpu/executor/table.h"
#include "cc/program/program.h"

namespace jaxcomm::fused {

// What a place tells the others.
struct Card {
  uint32_t rows;  // of each of its ranks, at most
  HostClock clock;
};

class BlockLayout {
 public:
  BlockLayout(const Program& program, const Table& table);

  size_t Bytes(uint32_t ranks, uint32_t rows) const;

  // The card, which begins the block, and the clocks.
  size_t head_bytes() const { return flags_; }
  size_t clocks() const { return clocks_; }
  size_t clock_words() const { return clock_words_; }

  uint64_t* FlagsOf(std::byte* block, uint32_t rank, uint32_t rows) const {
    return reinterpret_cast<uint64_t*>(block + flags_ + rank * ControlBytes(num_flags_, rows));
  }

  // Fills a block of the current device, and returns where its tables are.
  Result<TableView> Fill(std::byte* block, const Table& table, uint32_t ranks, const Card& card) const;

 private:
  size_t TablesAt(uint32_t ranks, uint32_t rows) const;

  const uint32_t num_flags_;
  const size_t clock_words_;
  size_t clocks_, flags_;
  size_t rank_tables_, ops_, ranks_, waits_, tables_bytes_;  // from where the tables begin
};

}  // namespace jaxcomm::fused

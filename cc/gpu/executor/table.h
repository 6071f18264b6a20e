// A program in the form that a kernel walks: per rank a flat list of ops, with the flags that each waits for and posts.
//
//   const Table table = Table::Build(program);
//   RunBlock(memory, table.view(), rank, epoch, timeout);   // protocol.h
//
// Every rank executes its own ops in the program's order, which no wait contradicts: the first op that is not done can
// always run once its ranks are there. So an op waits for no op of its own rank, and of another only for the last one.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/program/program.h"

namespace jaxcomm::fused {

// The flags of a rank. Those of ops for which other ranks wait follow.
inline constexpr uint32_t kArrived = 0;
inline constexpr uint32_t kFailed = 1;
inline constexpr uint32_t kFirstOpFlag = 2;
inline constexpr uint32_t kNoFlag = UINT32_MAX;

struct Wait {
  uint32_t rank;
  uint32_t flag;
  uint32_t op;  // whose flag it is, for messages; nothing else of a wait for an arrival
};

struct Range {
  uint32_t begin, size;
};

struct TableOp {
  uint32_t index;  // in the program
  uint32_t chunk;
  uint32_t flag;  // kNoFlag if nobody waits
  Range reads;    // in `ranks`
  Range writes;   // in `ranks`
  Range waits;    // in `waits`
};

struct RankTable {
  Range ops;
  Range exits;  // in `waits`: the last op of every other rank that touches this rank's memory
};

// A kernel's arguments.
struct TableView {
  uint32_t num_ranks, num_chunks, num_flags;
  const RankTable* rank_tables;
  const TableOp* ops;
  const uint32_t* ranks;
  const Wait* waits;
};

struct Table {
  uint32_t num_chunks = 0;
  uint32_t num_flags = kFirstOpFlag;  // per rank, the most that any has
  std::vector<RankTable> rank_tables;
  std::vector<TableOp> ops;
  std::vector<uint32_t> ranks;
  std::vector<Wait> waits;

  static Table Build(const Program& program);

  TableView view() const {
    const auto num_ranks = static_cast<uint32_t>(rank_tables.size());
    return {num_ranks, num_chunks, num_flags, rank_tables.data(), ops.data(), ranks.data(), waits.data()};
  }
};

}  // namespace jaxcomm::fused

// A program in the form that a kernel executes: a list of ops for each rank. Each op has the flags that the op waits
// for, and the flag that the op posts.
//
//   const Table table = Table::Build(program);
//   RunBlock(memory, table.view(), rank, epoch, timeout);   // protocol.h
//
// Every rank executes its own ops in the program's order, and an op waits only for earlier ops of the program. So there
// is no deadlock: the first unfinished op can run when the ranks whose memory it accesses have arrived. An op waits for
// no op of its own rank, and for at most one op of each other rank.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/program/program.h"

namespace jaxcomm::fused {

// The numbers of a rank's flags. From kFirstOpFlag on, each op that another rank waits for has one flag.
inline constexpr uint32_t kArrived = 0;
inline constexpr uint32_t kFailed = 1;
inline constexpr uint32_t kFirstOpFlag = 2;
inline constexpr uint32_t kNoFlag = UINT32_MAX;

struct Wait {
  uint32_t rank;
  uint32_t flag;
  uint32_t op;  // only for error texts: the op that posts the flag, or the waiting op if the flag is kArrived
};

struct Range {
  uint32_t begin, size;
};

struct TableOp {
  uint32_t index;  // index of the op in the program
  uint32_t chunk;
  uint32_t flag;  // kNoFlag if no rank waits for the op
  Range reads;    // indices in `ranks`
  Range writes;   // indices in `ranks`
  Range waits;    // indices in `waits`
};

struct RankTable {
  Range ops;
  Range exits;  // indices in `waits`: for each peer, the peer's last op that accesses this rank's memory
};

// A table as an argument of a kernel.
struct TableView {
  uint32_t num_ranks, num_chunks, num_flags;
  const RankTable* rank_tables;
  const TableOp* ops;
  const uint32_t* ranks;
  const Wait* waits;
};

struct Table {
  uint32_t num_chunks = 0;
  uint32_t num_flags = kFirstOpFlag;  // the largest number of flags that a rank has
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

#include "cc/gpu/executor/table.h"

#include <algorithm>
#include <cstddef>

namespace jaxcomm::fused {
namespace {

// A rank's knowledge about the progress of all ranks: for each rank, one more than the index of its last op that is
// known to be done, or 0 if there is none.
using Progress = std::vector<uint32_t>;

void Join(Progress& into, const Progress& other) {
  for (size_t rank = 0; rank < into.size(); ++rank) into[rank] = std::max(into[rank], other[rank]);
}

// The ranks whose arrival an op waits for, and the other ops that the op waits for.
struct Waits {
  std::vector<uint32_t> arrivals;
  std::vector<uint32_t> ops;
};

// Finds the ranks and ops that each op waits for. Walks the ops in order, and tracks which ops each rank knows to be
// done. An op does not wait for an op that its rank knows to be done.
std::vector<Waits> FindWaits(const Program& program) {
  const std::vector<Op>& ops = program.ops();
  const uint32_t ranks = program.ranks();
  std::vector<std::vector<uint32_t>> predecessors(ops.size());
  for (uint32_t op = 0; op < ops.size(); ++op) {
    for (const uint32_t next : ops[op].successors) predecessors[next].push_back(op);
  }
  std::vector<Waits> waits(ops.size());
  std::vector<Progress> knows(ranks, Progress(ranks, 0)), after(ops.size());
  std::vector<std::vector<bool>> met(ranks, std::vector<bool>(ranks, false));  // [a][b]: a has awaited b's arrival
  for (uint32_t index = 0; index < ops.size(); ++index) {
    const Op& op = ops[index];
    Progress& known = knows[op.rank];
    for (const uint32_t rank : op.touches) {
      if (rank != op.rank && !met[op.rank][rank]) waits[index].arrivals.push_back(rank);
      met[op.rank][rank] = true;
    }
    std::sort(predecessors[index].rbegin(), predecessors[index].rend());
    for (const uint32_t other : predecessors[index]) {
      const uint32_t rank = ops[other].rank;
      if (rank == op.rank || known[rank] > other) continue;
      waits[index].ops.push_back(other);
      Join(known, after[other]);
    }
    known[op.rank] = index + 1;
    after[index] = known;
  }
  return waits;
}

}  // namespace

Table Table::Build(const Program& program) {
  const std::vector<Op>& ops = program.ops();
  const std::vector<Waits> waits = FindWaits(program);
  const uint32_t num_ranks = program.ranks();

  // last[a][b] is the last op of rank b that accesses rank a's memory. Rank a may leave the call when last[a][b] is
  // done for every other rank b.
  std::vector<std::vector<uint32_t>> last(num_ranks, std::vector<uint32_t>(num_ranks, kNoFlag));
  std::vector<bool> awaited(ops.size(), false);
  for (uint32_t index = 0; index < ops.size(); ++index) {
    for (const uint32_t rank : ops[index].touches) last[rank][ops[index].rank] = index;
    for (const uint32_t other : waits[index].ops) awaited[other] = true;
  }
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    for (uint32_t executor = 0; executor < num_ranks; ++executor) {
      if (executor != rank && last[rank][executor] != kNoFlag) awaited[last[rank][executor]] = true;
    }
  }

  Table table;
  table.num_chunks = program.chunks();
  std::vector<uint32_t> next_flag(num_ranks, kFirstOpFlag), flag(ops.size(), kNoFlag);
  for (uint32_t index = 0; index < ops.size(); ++index) {
    if (awaited[index]) flag[index] = next_flag[ops[index].rank]++;
  }
  table.num_flags = *std::max_element(next_flag.begin(), next_flag.end());

  const auto list = [](auto& all, const auto& items) {
    const Range range{static_cast<uint32_t>(all.size()), static_cast<uint32_t>(items.size())};
    all.insert(all.end(), items.begin(), items.end());
    return range;
  };
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    RankTable mine{{static_cast<uint32_t>(table.ops.size()), 0}, {}};
    for (uint32_t index = 0; index < ops.size(); ++index) {
      if (ops[index].rank != rank) continue;
      std::vector<Wait> all;
      for (const uint32_t peer : waits[index].arrivals) all.push_back({peer, kArrived, index});
      for (const uint32_t other : waits[index].ops) all.push_back({ops[other].rank, flag[other], other});
      table.ops.push_back({index, ops[index].chunk, flag[index], list(table.ranks, ops[index].reads),
                           list(table.ranks, ops[index].writes), list(table.waits, all)});
    }
    mine.ops.size = static_cast<uint32_t>(table.ops.size()) - mine.ops.begin;
    std::vector<Wait> exits;
    for (uint32_t executor = 0; executor < num_ranks; ++executor) {
      const uint32_t index = last[rank][executor];
      if (executor != rank && index != kNoFlag) exits.push_back({executor, flag[index], index});
    }
    mine.exits = list(table.waits, exits);
    table.rank_tables.push_back(mine);
  }
  return table;
}

}  // namespace jaxcomm::fused

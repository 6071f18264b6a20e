// The order in which moves must run. A move waits for the earlier moves that write the data it reads, and for the
// earlier moves that read the data it changes.
//
//   const MoveDependencies needs = MoveDependencies::Of(moves);
//   needs.before.Each(move, [](size_t other) { ... });   // `move` waits for each `other`
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cc/search/list_scheduling.h"

namespace jaxcomm {

using Indices = std::vector<size_t>;

inline size_t Index(int64_t index) { return static_cast<size_t>(index); }

// For each move, a list of other moves.
class MoveLists {
 public:
  explicit MoveLists(const std::vector<std::pair<size_t, size_t>>& pairs, size_t count) : first_(count + 1) {
    for (const auto& [of, member] : pairs) ++first_[of + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    members_.resize(pairs.size());
    Indices next = first_;
    for (const auto& [of, member] : pairs) members_[next[of]++] = member;
  }
  size_t Size(size_t of) const { return first_[of + 1] - first_[of]; }
  template <typename Visit>
  void Each(size_t of, const Visit& visit) const {
    for (size_t at = first_[of]; at < first_[of + 1]; ++at) visit(members_[at]);
  }

 private:
  Indices first_, members_;
};

// For each move, the moves that must run before it and after it. A move waits for the earlier writers of the data it
// reads, and for the earlier readers of the data it changes. A copy or an exchange also waits for the earlier writers
// of the data it overwrites. For each chunk of a rank, the moves before the latest copy or exchange are omitted,
// because that copy or exchange waits for them.
struct MoveDependencies {
  MoveLists before, after;

  static MoveDependencies Of(const PendingMoves& moves) {
    const size_t cells = Index(moves.ranks) * Index(moves.chunks);
    std::vector<Indices> written(cells), read(cells);  // by rank and chunk: moves since the latest copy or exchange
    std::vector<std::pair<size_t, size_t>> before, after;
    Indices awaited;
    for (size_t move = 0; move < Index(moves.count); ++move) {
      const size_t source = Index(moves.src[move] * moves.chunks + moves.chunk[move]);
      const size_t target = Index(moves.dst[move] * moves.chunks + moves.chunk[move]);
      const MoveKind kind = moves.kind[move];
      const auto await = [&](const Indices& others) { awaited.insert(awaited.end(), others.begin(), others.end()); };
      awaited.clear();
      await(written[source]);
      await(read[target]);
      if (kind != MoveKind::kReduce) await(written[target]);
      if (kind == MoveKind::kExchange) await(read[source]);
      if (kind == MoveKind::kExchange) {
        written[source] = read[source] = written[target] = read[target] = {move};
      } else {
        read[source].push_back(move);
        if (kind == MoveKind::kCopy) {
          written[target] = {move};
          read[target].clear();
        } else {
          written[target].push_back(move);
        }
      }
      std::sort(awaited.begin(), awaited.end());
      awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
      for (const size_t other : awaited) {
        before.emplace_back(move, other);
        after.emplace_back(other, move);
      }
    }
    return {MoveLists(before, Index(moves.count)), MoveLists(after, Index(moves.count))};
  }
};

}  // namespace jaxcomm

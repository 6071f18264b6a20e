// Random changes of trees, one at a time.
//
//   TreeChanges changes(ranks, chunks, seed);
//   if (changes.Try(solution)) ...   // the changed solution is still valid
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "cc/search/tree_timetable.h"

namespace jaxcomm {

// Each change affects one parent, one pair of ranks, one root, one exchange, or one message's position in the order.
class TreeChanges {
 public:
  TreeChanges(int64_t ranks, int64_t chunks, uint64_t seed) : ranks_(ranks), chunks_(chunks), random_(seed) {}

  // Returns whether the solution has changed.
  bool Try(TreeSolution& solution) {
    const int64_t chunk = Below(chunks_);
    int64_t* up = &solution.up[static_cast<size_t>(chunk * ranks_)];
    int64_t* down = &solution.down[static_cast<size_t>(chunk * ranks_)];
    int64_t& partner = solution.partner[static_cast<size_t>(chunk)];
    switch (Below(10)) {
      case 0:
      case 1:
        return ChangeParent(down, partner);
      case 2:
        return ChangeParent(up, partner);
      case 3:
      case 4:
        return SwapRanks(up, down, partner);
      case 5:
        return Below(2) == 0 ? ChangeExchange(up, down, partner) : ChangeRoot(up, down, partner);
      default:
        return ChangeOrder(solution.order);
    }
  }

  // Returns a random number in [0, 1).
  double Share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

 private:
  // Whether `top` is the rank itself or one of the rank's ancestors, in the tree of one chunk.
  static bool IsBelow(const int64_t* parents, int64_t rank, int64_t top) {
    while (rank >= 0 && rank != top) rank = parents[rank];
    return rank == top;
  }

  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }

  bool ChangeOrder(std::vector<int64_t>& order) {
    const auto from = order.begin() + Below(static_cast<int64_t>(order.size()));
    const auto to = order.begin() + Below(static_cast<int64_t>(order.size()));
    from < to ? std::rotate(from, from + 1, to + 1) : std::rotate(to, from, from + 1);
    return from != to;
  }

  bool ChangeParent(int64_t* parents, int64_t partner) {
    const int64_t rank = Below(ranks_), parent = Below(ranks_);
    if (parents[rank] < 0 || rank == partner || IsBelow(parents, parent, rank)) return false;
    parents[rank] = parent;
    return true;
  }

  bool SwapRanks(int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t one = Below(ranks_), other = Below(ranks_);
    const auto swapped = [&](int64_t rank) { return rank == one ? other : rank == other ? one : rank; };
    for (int64_t* parents : {up, down}) {
      std::transform(parents, parents + ranks_, parents, swapped);
      std::swap(parents[one], parents[other]);
    }
    partner = swapped(partner);
    return one != other;
  }

  bool ChangeExchange(const int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t rank = Below(ranks_);
    if (partner >= 0) {
      partner = -1;
    } else if (up[rank] >= 0 && up[up[rank]] < 0) {
      partner = rank;
      down[rank] = up[rank];
    } else {
      return false;
    }
    return true;
  }

  // Makes a child of the root the new root.
  bool ChangeRoot(int64_t* up, int64_t* down, int64_t& partner) {
    const int64_t rank = Below(ranks_);
    if (up[rank] < 0 || up[up[rank]] >= 0) return false;
    up[std::exchange(up[rank], -1)] = rank;
    for (int64_t from = -1, at = rank; at >= 0;) {
      const int64_t next = std::exchange(down[at], from);
      from = std::exchange(at, next);
    }
    partner = -1;
    return true;
  }

  const int64_t ranks_, chunks_;
  std::mt19937_64 random_;
};

}  // namespace jaxcomm

// All-reduce along trees: every chunk is summed along one and copied along another, both changed at random as long as
// the last message is to arrive sooner (simulated annealing).
//
//   Status status = ImproveTrees(network, tries, seed, trees, times);  // equal input, equal output
//
// A chunk's sum is whole on its root. The root may have a partner: the two exchange what they have, which must be all,
// and both are then roots of the tree of copies.
//
// Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing" (1983); messages are placed one by one
// as by the parallel scheme of list scheduling.
#pragma once

#include <cstdint>

#include "cc/base/status.h"

namespace jaxcomm {

inline constexpr int64_t kStages = 4;  // shared links on the way of a message

// A message starts when both ranks are there and the ports that it needs are free, which it occupies until it has
// arrived. On its way it waits at shared links for those that have started before it, as in cc/simulate.
struct TreeNetwork {
  int64_t ranks;
  int64_t chunks;
  int64_t links;
  double alpha;           // seconds of a message beside those of its bytes
  const double* ready;    // by rank, the time when it comes
  const int64_t* remote;  // by source and destination, not 0 if the ports are not those of messages within a host
  const double* port_s;   // by source and destination, seconds of the bytes at the slower port
  const int64_t* link;    // [stages, source and destination], -1: none
  const double* link_s;   // [stages, source and destination], seconds of the bytes
};

// By chunk and rank, but for `partner`, which is by chunk. The sum that a rank sends is the message
// 2 * (chunk * ranks + rank), the total that it receives the next one. The root sends no sum; its number is ignored.
struct ChunkTrees {
  int64_t* up;       // the rank to which it sends its sum; of the root -1, of the partner the root
  int64_t* down;     // the rank from which it has the total; of the root -1, of the partner the root
  int64_t* partner;  // -1: none
  int64_t* order;    // all messages; of those that can start first, the first one here starts
};

// By message; -1: there is none.
struct TreeTimes {
  double* start;
  double* end;
};

// Replaces `trees` by the best result of `tries` changes, and fills in `times`. An error: fewer than two ranks, an
// unknown link or rank, a time that is negative or not finite, or invalid trees.
Status ImproveTrees(const TreeNetwork& network, int64_t tries, uint64_t seed, const ChunkTrees& trees,
                    const TreeTimes& times);

}  // namespace jaxcomm

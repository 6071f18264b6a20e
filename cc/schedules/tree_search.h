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
  const double* ready;    // by rank, when it comes
  const int64_t* remote;  // by source and destination, not 0 if the ports are not those of messages within a host
  const double* port_s;   // by source and destination, seconds of the bytes at the slower port
  const int64_t* link;    // [stages, source and destination], -1: none
  const double* link_s;   // [stages, source and destination], seconds of the bytes
};

// By chunk and rank, but for `partner`, which is by chunk. A sum that is sent, or a total that is received, is the
// message 2 * (chunk * ranks + rank), or that plus 1; what there is not, as the root's sum, is not looked at.
struct ChunkTrees {
  int64_t* up;       // whom it sends its sum to; of the root -1, of the partner the root
  int64_t* down;     // whom it has the total from; of the root -1, of the partner the root
  int64_t* partner;  // -1: none
  int64_t* order;    // of the messages: of those that can start first, the first one does
};

// By message; -1: there is none.
struct TreeTimes {
  double* start;
  double* end;
};

// Makes `trees` the best of so many tries that start from them, and says when their messages start and arrive.
// An error: fewer than two ranks, links or ranks that there are not, times below 0 or not finite, trees that are none.
Status ImproveTrees(const TreeNetwork& network, int64_t tries, uint64_t seed, const ChunkTrees& trees,
                    const TreeTimes& times);

}  // namespace jaxcomm

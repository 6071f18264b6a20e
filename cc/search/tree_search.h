// Improves the trees of an all-reduce. Each chunk is summed along one tree and copied along another. Random changes of
// both trees (simulated annealing) make the last message arrive sooner.
//
//   Status status = ImproveTrees(network, tries, seed, trees, times);  // equal inputs give equal outputs
//
// The root of a chunk's trees obtains the chunk's whole sum. If the root has a partner, root and partner exchange their
// partial sums. Both ranks then have the whole sum, and are roots of the tree of copies.
//
// Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing" (1983); messages are placed one by one
// as in the parallel scheme of list scheduling.
#pragma once

#include <cstdint>

#include "cc/base/status.h"

namespace jaxcomm {

inline constexpr int64_t kStages = 4;  // the largest number of shared links on a message's path

// A message starts when its data is ready, its two ranks have arrived and its ports are free. The message occupies the
// ports until it arrives at its destination. At shared links a message waits for the messages that started earlier.
struct TreeNetwork {
  int64_t ranks;
  int64_t chunks;
  int64_t links;
  double alpha;           // seconds per message, in addition to the transfer of its bytes
  const double* ready;    // by rank, the rank's arrival time
  const int64_t* remote;  // by source and destination: whether the message uses ports between hosts (nonzero or 0)
  const double* port_s;   // by source and destination, seconds to transfer the bytes at the slower of the two ports
  const int64_t* link;    // [stage][source][destination]; -1 if the path has no link at this stage
  const double* link_s;   // [stage][source][destination], seconds to transfer the bytes over the link
};

// `up` and `down` are indexed by chunk and rank, and `partner` by chunk. Message 2 * (chunk * ranks + rank) is the sum
// that the rank sends, and the next message is the total that the rank receives. The root sends no sum, and neither the
// root nor its partner receives a total. The numbers of these missing messages are ignored.
struct ChunkTrees {
  int64_t* up;       // the rank to which each rank sends its sum; the partner's entry is the root, the root's is -1
  int64_t* down;     // the rank that sends the total to each rank; the partner's entry is the root, the root's is -1
  int64_t* partner;  // the root's partner, or -1 if it has none
  int64_t* order;    // all messages; if several messages can start at the same time, the first in this order starts
};

// Times in seconds, by message; -1 for the missing messages.
struct TreeTimes {
  double* start;
  double* end;
};

// Replaces `trees` by the best result of `tries` changes, and fills in `times`. Returns an error if there are fewer
// than two ranks, an unknown link or rank, a time that is negative or not finite, or invalid trees.
Status ImproveTrees(const TreeNetwork& network, int64_t tries, uint64_t seed, const ChunkTrees& trees,
                    const TreeTimes& times);

}  // namespace jaxcomm

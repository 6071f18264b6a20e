// Computes when a schedule's messages run. Each message starts as soon as everything that it waits for is done. If
// several messages wait for a shared link, the link carries the message with the lowest number first.
//
//   MessageTimes times{start, free, end};   // arrays by node, with their values on entry
//   FindTimes(network, times);              // replaces these values by the times
//
// A link forwards a message's first byte to the next link at once. The slowest link or port on a message's path
// determines how long the message takes. A faster link on the path is busy for only a part of this time, and can carry
// other messages during the rest.
#pragma once

#include <cstdint>

#include "cc/base/index_lists.h"

namespace jaxcomm {

// The nodes are messages and points. Messages have the lower numbers. A point is a node that only passes on
// dependencies: it takes no time and uses no link.
struct MessageNetwork {
  int64_t messages;
  int64_t nodes;  // messages and points
  int64_t links;
  IndexLists after_end;   // by node, the nodes that wait for the node's arrival
  IndexLists after_free;  // by node, the nodes that wait only for the node's ports
  const int64_t* waits;   // by node, the number of nodes that the node waits for
  IndexLists stages;      // by node, the stages of the path in order; a stage is a row of `link`, `taken` and `slowest`
  // The next three arrays are [stage][message].
  const int64_t* link;    // the link that the message passes
  const double* taken;    // seconds that the message occupies the link
  const double* slowest;  // seconds from the message's first byte to its last byte at the link; at least `taken`
};

// Times by node, in seconds. They are updated in place.
struct MessageTimes {
  double* start;  // when the node starts; on entry: when the node's ranks have arrived
  double* free;   // when the node's ports are free; on entry: the seconds that the node occupies its ports
  double* end;    // when the node arrives; on entry: the seconds from the release of its ports to its arrival
};

void FindTimes(const MessageNetwork& network, const MessageTimes& times);

}  // namespace jaxcomm

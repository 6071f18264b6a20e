// When the messages of a schedule run: each as soon as what it awaits is over. Of those that wait for a shared link the
// one of the least number passes first.
//
//   MessageTimes times{start, free, end};   // by message, what is known before
//   FindTimes(network, times);              // and what follows from it
//
// A message passes a link as its bytes come in: its first byte goes on to the next link at once. A link that is faster
// than the message serves it at any time before its arrival, and others meanwhile.
#pragma once

#include <cstdint>

#include "cc/base/index_lists.h"

namespace jaxcomm {

// Messages come first, then points, which take no time and no link.
struct MessageNetwork {
  int64_t messages;
  int64_t nodes;  // messages and points
  int64_t links;
  IndexLists after_end;   // by node, those that await its arrival
  IndexLists after_free;  // those that await only its ports
  const int64_t* waits;   // by node, how many it awaits
  IndexLists stages;      // by node, the rows of `link`, `taken` and `slowest` that are its way, in order
  // As [stage][message]:
  const int64_t* link;    // the links that it passes
  const double* taken;    // seconds that it takes of the link
  const double* slowest;  // seconds from its first byte's passing the link to its last one's, no less than `taken`
};

// By node, in seconds.
struct MessageTimes {
  double* start;  // before: when its ranks are there
  double* free;   // when its ports are; before: how long it takes of them
  double* end;    // when it has arrived; before: how long that takes from then on
};

void FindTimes(const MessageNetwork& network, const MessageTimes& times);

}  // namespace jaxcomm

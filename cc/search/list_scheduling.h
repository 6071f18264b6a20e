// Rounds for moves with a given urgency: each starts as soon as its data and its ports are there.
//
//   Status status = FindRounds(moves, late, delay, {round, phase});
//
// The result of list scheduling is improved: the moves are scheduled from the end, which shows how late each may start,
// and then once more from the beginning, in the order of these times; and so on, as long as the schedule ends sooner.
// Of a fixed number of variants the best is taken; equal moves give equal rounds.
//
// Source: Li and Willis, "An iterative scheduling technique for resource-constrained project scheduling" (1992).
#pragma once

#include <cstdint>

#include "cc/base/index_lists.h"
#include "cc/base/status.h"

namespace jaxcomm {

enum class MoveKind : int64_t {
  kReduce = 0,
  kCopy = 1,
  kExchange = 2,  // the same chunk in both directions at once
};

// By move, in an order in which their values are right.
struct PendingMoves {
  int64_t count;
  int64_t ranks;
  int64_t chunks;
  int64_t ports;
  int64_t routes;
  const int64_t* src;
  const int64_t* dst;
  const int64_t* chunk;
  const MoveKind* kind;
  const double* seconds;   // until it has arrived
  const int64_t* route;    // its ports, as one of `ports_of`
  const int64_t* urgency;  // its place among all moves: of those that could start, the first one does
  IndexLists ports_of;     // by route
  // As the members of `ports_of`: how long a move takes the port, at any time from its start until it has arrived. Of a
  // fast and a slow link, the fast one carries other moves meanwhile.
  const double* port_seconds;
};

// By move. A rank is in the first phase until one of its moves waits for a late rank.
struct MoveRounds {
  int64_t* round;  // in its phase
  int64_t* phase;  // 0 or 1; 1 if no rank is late
};

// Of the moves at a port, the one that it carries first is in an earlier round, and so are those that a move awaits.
//   late: by rank, not 0 if it comes later than the others
//   delay: seconds; infinite if the others have by then done all moves without it
// An error: a move without a port, or of an unknown rank or chunk.
Status FindRounds(const PendingMoves& moves, const int64_t* late, double delay, const MoveRounds& rounds);

}  // namespace jaxcomm

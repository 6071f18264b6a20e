// Assigns rounds to moves with given urgencies. Each move starts as soon as its data and ports are ready.
//
//   Status status = FindRounds(moves, late, delay, {round, phase});
//
// The method is list scheduling, followed by iterative improvement. A backward schedule from the end shows how late
// each move may start. A forward schedule in the order of these times ends sooner. This repeats while the schedule
// improves. FindRounds tries several variants, and takes the schedule that ends first. Equal inputs give equal rounds.
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

// The moves. Run one after another in this order, they give the right values. All arrays are by move, except `ports_of`
// and `port_seconds`.
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
  const double* seconds;   // time from the move's start to its arrival
  const int64_t* route;    // index in `ports_of` of the list of the move's ports
  const int64_t* urgency;  // position among all moves; of the moves that can start, the lowest position starts first
  IndexLists ports_of;     // by route, the ports of the route's moves
  // By member of `ports_of`: the seconds that a move occupies the port, at any time between the move's start and its
  // arrival. Therefore the port of a fast link can carry other moves while a slow link still carries this move.
  const double* port_seconds;
};

// The result, by move. A rank is in the first phase until one of its moves waits for a late rank.
struct MoveRounds {
  int64_t* round;  // the move's round in its phase
  int64_t* phase;  // 0 or 1; always 1 if no rank is late
};

// Fills in the rounds. The moves at a port have ascending rounds, in the order in which the port carries the moves. A
// move's round is after the rounds of the moves that it waits for.
//   late: by rank, 0 unless the rank is late
//   delay: seconds by which late ranks are late; infinite if they arrive after all moves that need no late rank
// Returns an error if a move has no port, or an unknown rank or chunk.
Status FindRounds(const PendingMoves& moves, const int64_t* late, double delay, const MoveRounds& rounds);

}  // namespace jaxcomm

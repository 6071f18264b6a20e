// Assigns rounds to moves with given urgencies. A move transfers one chunk between two ranks. Each move starts as soon
// as its data and ports are ready.
//
//   Status status = FindRounds(moves, late, delay, {round, phase});
//
// The method is list scheduling, followed by iterative improvement. A backward schedule from the end shows how late
// each move may start. The next forward schedule starts the moves in the order of these latest start times. Both steps
// repeat while the forward schedule ends sooner than before. FindRounds tries several variants, and takes the schedule
// that ends first. Equal inputs give equal rounds.
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
  kExchange = 2,  // the two ranks send each other the chunk at the same time
};

// The moves, in an order that gives the right values if the moves run one after another. All arrays are indexed by
// move, except `ports_of` and `port_seconds`.
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
  const int64_t* urgency;  // position in the order of urgency; 0 for the most urgent move
  IndexLists ports_of;     // by route, the ports of the route's moves
  // Seconds for which a move occupies each port in `ports_of`, at some time between the move's start and its arrival.
  // Therefore the port of a fast link can carry other moves while a slow link still carries this move.
  const double* port_seconds;
};

// The result, by move. A rank is in the first phase until one of its moves waits for a late rank.
struct MoveRounds {
  int64_t* round;  // the move's round in its phase
  int64_t* phase;  // 0 or 1; always 1 if no rank is late
};

// Fills in the rounds. The moves at a port have ascending rounds, in the order in which the port carries the moves. A
// move's round is after the rounds of the moves that it waits for.
//   late: by rank, nonzero if the rank is late
//   delay: seconds by which late ranks are late; infinite if they arrive after all moves that need no late rank
// Returns an error if a move has no port, or an unknown rank or chunk.
Status FindRounds(const PendingMoves& moves, const int64_t* late, double delay, const MoveRounds& rounds);

}  // namespace jaxcomm

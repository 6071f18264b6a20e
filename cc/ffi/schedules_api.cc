// The C functions by which Python makes schedules; c_function.h says how they end.

#include <cstdint>

#include "cc/base/c_function.h"
#include "cc/search/list_scheduling.h"
#include "cc/search/tree_search.h"

namespace jaxcomm {

// All as in list_scheduling.h; `round` and `phase` are the answer.
JAXCOMM_EXPORT int jaxcomm_find_rounds(int64_t count, int64_t ranks, int64_t chunks, int64_t ports, int64_t routes,
                                       const int64_t* src, const int64_t* dst, const int64_t* chunk,
                                       const MoveKind* kind, const double* seconds, const int64_t* route,
                                       const int64_t* urgency, const int64_t* port_first, const int64_t* port_members,
                                       const double* port_seconds, const int64_t* late, double delay, int64_t* round,
                                       int64_t* phase, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return FindRounds({count,
                       ranks,
                       chunks,
                       ports,
                       routes,
                       src,
                       dst,
                       chunk,
                       kind,
                       seconds,
                       route,
                       urgency,
                       {port_first, port_members},
                       port_seconds},
                      late, delay, {round, phase});
  });
}

// All as in tree_search.h; `up`, `down`, `partner`, `order`, `start` and `end` are the answer.
JAXCOMM_EXPORT int jaxcomm_improve_trees(int64_t ranks, int64_t chunks, int64_t links, double alpha,
                                         const double* ready, const int64_t* remote, const double* port_s,
                                         const int64_t* link, const double* link_s, int64_t tries, int64_t seed,
                                         int64_t* up, int64_t* down, int64_t* partner, int64_t* order, double* start,
                                         double* end, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    return ImproveTrees({ranks, chunks, links, alpha, ready, remote, port_s, link, link_s}, tries,
                        static_cast<uint64_t>(seed), {up, down, partner, order}, {start, end});
  });
}

}  // namespace jaxcomm

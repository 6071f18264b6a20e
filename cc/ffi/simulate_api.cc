// The C function by which Python simulates schedules; c_function.h says how it ends.

#include <cstdint>

#include "cc/base/c_function.h"
#include "cc/simulate/message_times.h"

namespace jaxcomm {

// All as in message_times.h; `start`, `free` and `end` hold what is known before, and then the times.
JAXCOMM_EXPORT int jaxcomm_simulate(int64_t messages, int64_t nodes, int64_t links, const int64_t* end_first,
                                    const int64_t* end_members, const int64_t* free_first, const int64_t* free_members,
                                    const int64_t* waits, const int64_t* stage_first, const int64_t* stage_members,
                                    const int64_t* link, const double* taken, const double* slowest, double* start,
                                    double* free, double* end, char* error, int64_t capacity) {
  return Answer(error, capacity, [&] {
    FindTimes({messages,
               nodes,
               links,
               {end_first, end_members},
               {free_first, free_members},
               waits,
               {stage_first, stage_members},
               link,
               taken,
               slowest},
              {start, free, end});
  });
}

}  // namespace jaxcomm

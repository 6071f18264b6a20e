// The random properties of a simulated job, and the starts of its processes.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/ffi/job.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

struct JobPlan {
  // Draws a job, and gives the links between its hosts their properties.
  static JobPlan Draw(Scheduler& scheduler, Network& network);

  uint32_t processes, rails;
  std::vector<uint32_t> hosts;  // by process
  RailKind kind;
  bool is_encrypted;
  int faults;
};

// One start of a process.
struct Member {
  uint32_t number;
  uint64_t incarnation;
  Process* process;
  bool is_known_dead = false;                    // the coordination service knows that the start has ended
  bool is_replaced = false;                      // the process was started again, but this start goes on
  bool has_entered = false, has_failed = false;  // for the service's barrier
  bool is_done = false;
};

}  // namespace jaxcomm::simulated

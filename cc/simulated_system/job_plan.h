// The random properties of a simulated job, and the incarnations of its processes.
#pragma once

#include <cstdint>
#include <vector>

#include "cc/ffi/job.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

struct JobPlan {
  // Draws the properties of a job, and sets the properties of the links between the job's hosts.
  static JobPlan Draw(Scheduler& scheduler, Network& network);

  uint32_t processes, rails;
  std::vector<uint32_t> hosts;  // by process
  RailKind kind;
  bool is_encrypted;
  int faults;
};

// An incarnation of a process. A process that is started again is a new Member.
struct Member {
  uint32_t number;
  uint64_t incarnation;
  Process* process;
  bool is_known_dead = false;                    // the coordination service counts this incarnation as ended
  bool is_replaced = false;                      // the process was started again, but this incarnation still runs
  bool has_entered = false, has_failed = false;  // used by the service's barrier
  bool is_done = false;
};

}  // namespace jaxcomm::simulated

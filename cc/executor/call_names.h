// Names the executions of calls alike in every process, by facts that all processes know: the groups of devices that
// call, the number of launches that called on them before, and the call's place in its launch.
//
//   CallId id = names.Next(communicator, run, site, rank, given_up);
//
// A communicator is the groups of devices of a call. As for jax.lax, all processes launch steps with calls on the same
// devices in the same order; the steps themselves may differ, and be compiled at different times. The launches of other
// communicators do not count, nor do steps without a call. Not thread-safe.
//
// A process that did not launch a step counts one launch less than the others, which give that launch up at the
// deadline. If its next launch is one of another step, it skips the number of the launch that was given up, and joins
// the others; if it is one of the same step, it takes that number and gets the error of the launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class CallNames {
 public:
  // The newest launches of a communicator, which it keeps; no rank may join an older one.
  static constexpr size_t kLaunches = 1024;

  // `run`: XLA's number of the launch in this process. `given_up(launch)`: whether the other processes have given up
  // the launch of this number, and it was one of another step.
  template <typename GivenUp>
  CallId Next(uint64_t communicator, int64_t run, uint32_t site, uint32_t rank, const GivenUp& given_up) {
    Launches& launches = communicators_[communicator];
    const auto added = launches.by_run.Add(run);
    Launch& launch = *added.value;
    if (added.is_new) {
      while (given_up(launches.next)) ++launches.next;
      launch.number = launches.next++;
    }
    return {communicator, launch.number, site, launch.executions[{site, rank}]++};
  }

  // The launch's name on each communicator on which it has called.
  std::vector<CallId> Find(int64_t run) const {
    std::vector<CallId> found;
    for (const auto& [communicator, launches] : communicators_) {
      const Launch* const launch = launches.by_run.Find(run);
      if (launch) found.push_back({communicator, launch->number, 0, 0});
    }
    return found;
  }

  // No process launches anything on the communicator any more.
  void Forget(uint64_t communicator) { communicators_.erase(communicator); }

 private:
  struct Launch {
    uint32_t number = 0;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> executions;  // by site and rank
  };
  struct Launches {
    uint32_t next = 0;
    BoundedMap<int64_t, Launch> by_run{kLaunches};
  };

  std::map<uint64_t, Launches> communicators_;
};

}  // namespace jaxcomm

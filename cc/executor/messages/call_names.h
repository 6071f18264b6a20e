// Names the executions of calls, with the same names in every process. A name consists of facts that all processes
// know: the groups of devices that call, the number of earlier launches with calls on these groups, and the call's
// place in its launch.
//
//   CallId id = names.Next(communicator, run, site, rank, given_up);
//
// A communicator stands for the groups of devices of a call. Steps with calls on the same devices must be launched in
// the same order in all processes, as for jax.lax. The steps themselves may differ and may be compiled at different
// times. The number of a launch counts only launches with calls on the same communicator. Not thread-safe.
//
// If a process skips a launch, the process counts one launch less than the other processes, and the other processes
// give the launch up at the deadline. If the process then launches another step, the number of the given-up launch is
// skipped, so that the step joins the other processes' next launch. If the process then launches the same step, the
// step gets the number and the error of the given-up launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/base/hash.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// Returns a hash of a call's name, for reports that compare processes.
inline uint64_t HashOf(const CallId& id) {
  const uint64_t words[] = {id.communicator, (uint64_t{id.launch} << 32) | id.site, id.iteration};
  return Hash({reinterpret_cast<const char*>(words), sizeof words});
}

class CallNames {
 public:
  // The maximum number of launches that are kept per communicator, the newest ones. No rank may join an older launch.
  static constexpr size_t kLaunches = 1024;

  // `run`: XLA's number of the launch in this process. `given_up(launch)`: whether the launch with this number was a
  // launch of another step, and the other processes have given it up.
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

  // Returns the launch's number on each communicator on which the launch has made calls.
  std::vector<CallId> Find(int64_t run) const {
    std::vector<CallId> found;
    for (const auto& [communicator, launches] : communicators_) {
      const Launch* const launch = launches.by_run.Find(run);
      if (launch) found.push_back({communicator, launch->number, 0, 0});
    }
    return found;
  }

  // Drops a communicator that no process uses any more.
  void Forget(uint64_t communicator) { communicators_.erase(communicator); }

 private:
  struct Launch {
    uint32_t number = 0;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> executions;  // by site and rank: the number of executions so far
  };
  struct Launches {
    uint32_t next = 0;
    BoundedMap<int64_t, Launch> by_run{kLaunches};
  };

  std::map<uint64_t, Launches> communicators_;
};

}  // namespace jaxcomm

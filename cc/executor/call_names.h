// Names the executions of call sites alike in every process: launches of a module are counted, as are a rank's
// executions of a call site in one launch.
//
//   CallId id = names.Next(module, run, site, rank);
//
// Processes launch a module equally often and in the same order. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "cc/transport/transport.h"

namespace jaxcomm {

class CallNames {
 public:
  // How many launches are remembered; of older ones no rank may come any more.
  static constexpr size_t kLaunches = 1024;

  // `run`: XLA's number of the launch in this process.
  CallId Next(uint64_t module, int64_t run, uint32_t site, uint32_t rank) {
    Launch& launch = FindLaunch(module, run);
    return {module, launch.ordinal, site, launch.executions[{site, rank}]++};
  }

  // How often the module had been launched before. Also for a call of the launch that is not for this process, which
  // must count the launch as the others do.
  uint32_t LaunchOf(uint64_t module, int64_t run) { return FindLaunch(module, run).ordinal; }

  // The module is launched no more, in any process.
  void Forget(uint64_t module) { launched_.erase(module); }

 private:
  using Key = std::pair<uint64_t, int64_t>;
  struct Launch {
    uint32_t ordinal = 0;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> executions;  // by site and rank
  };

  Launch& FindLaunch(uint64_t module, int64_t run) {
    const auto [at, is_new] = launches_.try_emplace({module, run});
    Launch& launch = at->second;
    if (is_new) {
      launch.ordinal = launched_[module]++;
      order_.push_back(at->first);
      if (order_.size() > kLaunches) {
        launches_.erase(order_.front());
        order_.pop_front();
      }
    }
    return launch;
  }

  std::map<Key, Launch> launches_;
  std::deque<Key> order_;
  std::map<uint64_t, uint32_t> launched_;  // by module; kept, as processes drop their executables at different times
};

}  // namespace jaxcomm

// Tracks the fenced rails from this process to other processes, and finds the host that lacks a rail.
//
//   LostRails lost;
//   lost.Change(/*process=*/3, /*rail=*/1, /*is_open=*/false);
//   std::optional<uint32_t> schedule = lost.Find(site);   // the schedule for the host that lacks a rail
//
// If a rail is fenced to all processes of one other host, that host lacks the rail. If a rail is fenced to all
// processes of all other hosts, this host lacks the rail. No host counts as lacking a rail in these cases: the rail is
// fenced to only some of a host's processes; the rail is fenced to several but not all other hosts; several rails are
// fenced; there are only two hosts.
//
// With one process per host, a single fence may also mean a broken path between two hosts, or be the first of several
// fences. Calls then run the schedule for the wrong host until more fences are reported. That schedule costs no more
// than the default schedule. Waiting for more fences would cost more, because no call would run the right host's
// schedule meanwhile.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "cc/executor/decide/decided_site.h"

namespace jaxcomm {

class LostRails {
 public:
  void Change(uint32_t process, uint32_t rail, bool is_open);
  void Clear();
  // Returns the schedule that the site's selector has for the host that lacks a rail. nullopt if no host lacks a rail,
  // or if the selector has no schedule for this host and rail.
  std::optional<uint32_t> Find(const DecidedSite& site) const;

 private:
  struct Lack {
    uint32_t host, rail;
  };

  std::optional<Lack> FindLack(const DecidedSite& site) const;

  mutable std::mutex mutex_;
  std::map<uint32_t, std::set<uint32_t>> lost_;  // by rail: the processes to which the rail is fenced
  std::atomic<bool> is_empty_{true};
};

}  // namespace jaxcomm

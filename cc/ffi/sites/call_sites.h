// The call sites of a custom call. Make creates them from the call's record.
//
//   Result<std::unique_ptr<CallSites>> sites = CallSites::Make(record);
//   Result<CallSites::Rank> rank = sites.value()->Find(device);
//
// Call sites between processes use the hosts, rails and call numbers of one generation of the job. Find makes new call
// sites in each generation. The destructor removes the call sites from the executor. In a forked child the destructor
// does not use the executor, because a thread of the parent may have held the executor's mutex during the fork.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/ffi/sites/call_number.h"
#include "cc/ffi/sites/site_record.h"

namespace jaxcomm {

class CallSites {
 public:
  struct Rank {
    std::shared_ptr<CallSite> site;  // null if the group has no other rank
    uint32_t rank;                   // the rank's number in the site
    size_t ranks;                    // the number of ranks in the group
  };
  using Ranks = std::map<int32_t, Rank>;           // by device
  using Numbers = std::map<uint64_t, CallNumber>;  // by communicator

  // Fails if this process lacks a schedule, or if the call is between processes that are not connected.
  static Result<std::unique_ptr<CallSites>> Make(SiteRecord record);
  ~CallSites();
  CallSites(const CallSites&) = delete;

  // Fails if the device is in no group, or if the executable belongs to an earlier job of this process.
  Result<Rank> Find(int32_t device);

  const std::string& name() const { return record_.name; }
  const std::string& who() const { return who_; }  // "psum over 'data'"
  Kind kind() const { return record_.kind; }
  bool is_in_place() const { return record_.is_in_place; }

 private:
  explicit CallSites(SiteRecord record);

  Status Renew();
  void Forget() const;

  const SiteRecord record_;
  const std::string who_;
  const pid_t process_;
  const uint64_t job_;
  std::mutex mutex_;         // guards the members below
  uint64_t generation_ = 0;  // the generation of `ranks_`; always 0 for calls within one process
  Numbers numbers_;          // the same in all generations
  Ranks ranks_;              // the ranks of this process
};

}  // namespace jaxcomm

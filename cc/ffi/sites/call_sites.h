// The call sites of a custom call, which are made from the call's record.
//
//   Result<std::unique_ptr<CallSites>> sites = CallSites::Make(record);
//   const CallSites::Rank* rank = sites.value()->Find(device);
//
// Immutable. The destructor has the executor forget these call sites. In a forked child the destructor does not use the
// executor, because threads of the parent may have held the executor's mutexes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/executor/calls/call_site.h"
#include "cc/ffi/sites/site_record.h"

namespace jaxcomm {

class CallSites {
 public:
  struct Rank {
    std::shared_ptr<CallSite> site;  // null if the group has no other rank
    uint32_t rank;                   // the rank's number in the site
    size_t ranks;                    // the number of ranks in the group
  };
  using Ranks = std::map<int32_t, Rank>;  // by device

  // Fails if this process lacks a schedule, or if the call is between processes and these are not connected.
  static Result<std::unique_ptr<CallSites>> Make(const SiteRecord& record);
  ~CallSites();
  CallSites(const CallSites&) = delete;

  // Returns null if the device is in no group.
  const Rank* Find(int32_t device) const {
    const auto at = ranks_.find(device);
    return at == ranks_.end() ? nullptr : &at->second;
  }
  // Fails if the executable belongs to an earlier job of this process.
  Status CheckJob() const;

  const std::string& name() const { return name_; }
  const std::string& who() const { return who_; }  // "psum over 'data'"
  Kind kind() const { return kind_; }

 private:
  CallSites(const SiteRecord& record, std::optional<uint64_t> generation, Ranks ranks);

  const std::string name_, who_;
  const Kind kind_;
  const std::optional<uint64_t> generation_;  // the job's generation; nullopt within one process
  const Ranks ranks_;                         // the ranks of this process
  const pid_t process_;
};

}  // namespace jaxcomm

// The call sites of a custom call, from its record.
//
//   Result<std::unique_ptr<CallSites>> sites = CallSites::Make(record);
//   const CallSites::Rank* rank = sites.value()->Find(device);
//
// Immutable. Its end frees what the executor keeps for them. In a child that the process forks it leaves the executor
// alone, whose mutexes threads of the parent may have held.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/executor/call_site.h"
#include "cc/ffi/site_record.h"

namespace jaxcomm {

class CallSites {
 public:
  struct Rank {
    std::shared_ptr<CallSite> site;  // null: the only rank of its group
    uint32_t rank;                   // as the site counts
    size_t ranks;                    // in its group
  };
  using Ranks = std::map<int32_t, Rank>;  // by device

  // An error: this process lacks a schedule, or is not connected to the others.
  static Result<std::unique_ptr<CallSites>> Make(const SiteRecord& record);
  ~CallSites();
  CallSites(const CallSites&) = delete;

  // Null: the device is in no group.
  const Rank* Find(int32_t device) const {
    const auto at = ranks_.find(device);
    return at == ranks_.end() ? nullptr : &at->second;
  }
  // An error: the executable belongs to an earlier job of this process.
  Status CheckJob() const;

  const std::string& name() const { return name_; }
  const std::string& who() const { return who_; }  // "psum over 'data'"
  Kind kind() const { return kind_; }

 private:
  CallSites(const SiteRecord& record, std::optional<uint64_t> generation, Ranks ranks);

  const std::string name_, who_;
  const Kind kind_;
  const std::optional<uint64_t> generation_;  // of the job, between processes
  const Ranks ranks_;                         // of this process
  const pid_t process_;
};

}  // namespace jaxcomm

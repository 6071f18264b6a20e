// A model of JAX's coordination service: a barrier of the live processes, as in live_devices, and a key-value store.
//
//   CoordinationService service(scheduler, is_last);
//   service.Register(member);                                   // a process was started
//   const Barrier barrier = service.Enter(member, has_failed);  // blocks; all members get the same barrier
//   service.Publish({generation, from, to, "shm"}, {fd, nonce});
//   auto found = service.Lookup({generation, from, to, "shm"}, member, until);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "cc/simulated_system/job_plan.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

// The result of a barrier. `generation` changes when the members must connect anew.
struct Barrier {
  uint64_t number = 0, generation = 0;
  std::map<uint32_t, uint64_t> members;  // incarnations by process
  bool is_last = false;
};

class CoordinationService {
 public:
  // The key of an entry: the generation, the process that publishes, the process that reads, and a name.
  using Entry = std::tuple<uint64_t, uint32_t, uint32_t, std::string>;
  using Value = std::pair<int64_t, int64_t>;
  // Returns whether the job ends at a barrier. `has_failed`: whether a member's call has failed since the last barrier.
  using IsLast = std::function<bool(size_t members, bool has_failed)>;

  CoordinationService(Scheduler& scheduler, IsLast is_last) : scheduler_(scheduler), is_last_(std::move(is_last)) {}

  void Register(std::shared_ptr<Member> member) { starts_[member->number] = std::move(member); }
  // Returns the latest incarnation of a process.
  const std::shared_ptr<Member>& Latest(uint32_t process) const { return starts_.at(process); }
  // Reports that the member has ended. The other processes then stop waiting for the member.
  void ReportEnd(Member& member);

  // Returns a barrier without members if the member counts as ended.
  Barrier Enter(Member& member, bool has_failed);

  void Publish(const Entry& entry, Value value);
  // Returns and removes an entry. Returns nullopt if there is no such entry.
  std::optional<Value> Take(const Entry& entry);
  // Waits for an entry that `other` publishes. Returns nullopt if `other` ends or has failed to connect, or if the time
  // `until` is reached.
  std::optional<Value> Lookup(const Entry& entry, const Member& other, Nanoseconds until);
  // Reports that a process has failed to connect in a generation. The others then stop waiting for its entries.
  void PublishFailure(uint64_t generation, uint32_t process) { Publish({generation, process, 0, "failed"}, {}); }

 private:
  void CompleteBarrier();

  Scheduler& scheduler_;
  const IsLast is_last_;
  std::map<uint32_t, std::shared_ptr<Member>> starts_;  // the latest incarnation of each process
  Barrier barrier_;
  std::map<Entry, Value> entries_;
};

}  // namespace jaxcomm::simulated

// Faults at random times: processes are killed, stopped, replaced or short of memory; links are cut or degraded.
//
//   Faults faults(scheduler, network, plan, service, start);
//   faults.OnCall(process, call);                // a member begins a call: faults may strike a moment later
//   if (!faults.NamesSuspect(error, call)) ...   // the error of this call blames a process that had no fault
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "cc/simulated_system/coordination_service.h"
#include "cc/simulated_system/job_plan.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

class Faults {
 public:
  // `start` starts a process again.
  Faults(Scheduler& scheduler, Network& network, const JobPlan& plan, CoordinationService& service,
         std::function<void(uint32_t)> start);

  void OnCall(uint32_t process, uint32_t call);
  // Called when a process has aborted, which only a process that lacks memory may do.
  void OnAbort(Process& process);
  // Returns whether no more faults will begin. The last fault may still last until the time `until()`.
  bool have_struck() const { return calls_of_strikes_.empty(); }
  Nanoseconds until() const { return until_; }
  uint64_t calls() const { return calls_; }

  // Suspects are the processes that had a fault, or whose call failed because of another process's fault.
  void Suspect(uint32_t process) { suspects_.insert(process); }
  bool IsSuspect(uint32_t process) const { return suspects_.count(process) > 0; }
  // Returns whether the error of a call names a suspect, or a rank that waits for a third rank in this call or an
  // earlier one. Such a rank is accepted, because the other ranks cannot know that it waits.
  bool NamesSuspect(const std::string& error, uint32_t call) const;

 private:
  uint32_t Random(uint64_t limit) { return static_cast<uint32_t>(scheduler_.Random(limit)); }
  Nanoseconds RandomTime(Nanoseconds limit) { return scheduler_.RandomTime(limit); }
  void Extend(Nanoseconds until) { until_ = std::max(until_, until); }
  void SuspectHosts(uint32_t one, uint32_t other);

  void Strike();
  void StopFor(const std::shared_ptr<Member>& member, Nanoseconds time);
  void Replace(const std::shared_ptr<Member>& member);
  void TakeMemory(const std::shared_ptr<Member>& member);
  void Degrade();
  void CutHost(uint32_t number);
  void Kill(const std::shared_ptr<Member>& member);

  Scheduler& scheduler_;
  Network& network_;
  const JobPlan& plan_;
  CoordinationService& service_;
  const std::function<void(uint32_t)> start_;
  std::multiset<uint64_t> calls_of_strikes_;  // the numbers of the calls at which faults will strike
  std::set<uint32_t> suspects_;
  std::map<uint32_t, uint32_t> latest_calls_;  // by process
  bool have_lacked_memory_ = false;
  uint64_t calls_ = 0;
  Nanoseconds until_ = 0;
};

}  // namespace jaxcomm::simulated

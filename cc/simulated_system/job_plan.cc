#include "cc/simulated_system/job_plan.h"

#include <algorithm>
#include <string>

namespace jaxcomm::simulated {

JobPlan JobPlan::Draw(Scheduler& scheduler, Network& network) {
  const auto random = [&](uint64_t limit) { return static_cast<uint32_t>(scheduler.Random(limit)); };
  JobPlan plan;
  plan.processes = 2 + random(4);
  const uint32_t hosts = 1 + random(std::min(plan.processes, 3u));
  for (uint32_t i = 0; i < plan.processes; ++i) plan.hosts.push_back(i < hosts ? i : random(hosts));
  plan.rails = 1 + random(3);
  plan.kind = random(2) == 0 ? RailKind::kTcp : RailKind::kUdp;
  plan.is_encrypted = random(4) == 0;
  plan.faults = random(4) == 0 ? 0 : 1 + static_cast<int>(random(5));
  for (uint32_t from = 0; from < hosts; ++from) {
    for (uint32_t to = 0; to < hosts; ++to) {
      for (uint32_t rail = 0; rail < plan.rails; ++rail) {
        Link& link = network.Between(from, to, rail);
        link.delay = kMicrosecond * (10 + random(1000));
        link.jitter = random(2) == 0 ? 0 : kMicrosecond * random(2000);
        link.bytes_per_second = 10000000 * (1 + random(100));
        link.loss = random(2) == 0 ? 0 : 0.03 * random(3);
        link.repeats = random(2) == 0 ? 0 : 0.02;
      }
    }
  }
  scheduler.Trace(std::to_string(plan.processes) + " processes on " + std::to_string(hosts) + " hosts, " +
                  std::to_string(plan.rails) + (plan.is_encrypted ? " encrypted" : "") +
                  (plan.kind == RailKind::kTcp ? " TCP" : " UDP") + " rails, " + std::to_string(plan.faults) +
                  " faults");
  return plan;
}

}  // namespace jaxcomm::simulated

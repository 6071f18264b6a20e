// The program of each process of a simulated job: it passes barriers, connects with the other members, restores rails,
// and makes calls, whose results and errors it checks.
//
//   MemberProgram program(scheduler, network, plan, service, faults, sums, member);
//   program.Run();   // until the job's last barrier
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/device_communicator.h"
#include "cc/executor/testing/random_calls.h"
#include "cc/ffi/job.h"
#include "cc/simulated_system/coordination_service.h"
#include "cc/simulated_system/faults.h"
#include "cc/simulated_system/job_plan.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {

// The sums that members got. All members of a generation must get the same bits.
class SumsOfAll {
 public:
  // Returns whether the sum has the same bits as the first reported sum of this launch.
  bool AreSame(uint64_t generation, int64_t launch, const std::vector<float>& sum) {
    const auto [found, is_first] = sums_.emplace(std::make_pair(generation, launch), sum);
    return is_first || std::memcmp(found->second.data(), sum.data(), sum.size() * sizeof(float)) == 0;
  }

 private:
  std::map<std::pair<uint64_t, int64_t>, std::vector<float>> sums_;
};

class MemberProgram {
 public:
  MemberProgram(Scheduler& scheduler, Network& network, const JobPlan& plan, CoordinationService& service,
                Faults& faults, SumsOfAll& sums_of_all, std::shared_ptr<Member> member)
      : scheduler_(scheduler),
        network_(network),
        plan_(plan),
        service_(service),
        faults_(faults),
        sums_of_all_(sums_of_all),
        self_(std::move(member)) {}

  void Run();

 private:
  void EndReplaced();
  void End();
  void Leave();

  // Functions that connect this process with the other members. Those of type bool return whether they succeeded.
  bool Connect(const Barrier& barrier);
  bool AddShm(const Member& other, Nanoseconds until);
  bool AddRails(const Member& other, Nanoseconds until);
  CoordinationService::Value ConnectRail(const Member& other, uint32_t rail, const std::string& name);
  std::pair<int, int> Accepted(const CoordinationService::Value& sockets);
  TcpPath TcpPathOf(const Member& other, int connection) const;
  UdpPath UdpPathOf(const Member& other, int connection, int socket) const;
  CipherKeys CipherKeysOf(const Member& other) const;
  bool Check(const Status& status);
  void Repair();
  void Restore(const Rails::Lost& lost);

  Status MakeSums(const std::vector<MessageRank>& devices);
  Status MakeLateSums(const std::vector<MessageRank>& devices);
  CheckedCall Sum(uint32_t call);
  CheckedCall LateSum(uint32_t call);
  CheckedCall CallWithMemory(uint32_t call, size_t words, std::mt19937& random);
  CheckedCall MakeCall(uint32_t call, size_t words, std::mt19937& random);
  bool Call(uint32_t call);

  Scheduler& scheduler_;
  Network& network_;
  const JobPlan& plan_;
  CoordinationService& service_;
  Faults& faults_;
  SumsOfAll& sums_of_all_;
  const std::shared_ptr<Member> self_;
  MessageRegistry lists_;
  Executor executor_{2};
  Job job_{&executor_.messages()};
  uint64_t generation_ = 0;
  std::mutex repair_mutex_;                             // held while rails are restored, and while this process leaves
  std::map<uint32_t, std::shared_ptr<Member>> others_;  // the other members of the generation, by number
  bool is_connected_ = false, is_over_ = false, repairs_ = true;
  uint32_t rank_ = 0, num_ranks_ = 0;
  std::unique_ptr<DeviceCommunicator> communicator_;  // null if there is no other member
  std::shared_ptr<MessageSite> sums_, late_sums_;
  int64_t launches_ = 0, late_launches_ = 0;
};

}  // namespace jaxcomm::simulated

#include "cc/simulated_system/job_history.h"

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "cc/base/own_descriptors.h"
#include "cc/simulated_system/coordination_service.h"
#include "cc/simulated_system/faults.h"
#include "cc/simulated_system/job_plan.h"
#include "cc/simulated_system/member_program.h"
#include "cc/simulated_system/network.h"
#include "cc/simulated_system/processes.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

constexpr Nanoseconds kRecovery = 120 * kSecond;  // time limit for the recovery from the last fault
constexpr uint32_t kLastBlocks = 2;               // a history ends after this number of blocks without a failed call

class JobHistory {
 public:
  explicit JobHistory(uint32_t seed) : scheduler_(seed), network_(scheduler_) {}

  void Run() {
    scheduler_.Run([this] {
      CloseInChildren(-1);  // makes the registry that all processes share
      plan_ = JobPlan::Draw(scheduler_, network_);
      faults_ = std::make_unique<Faults>(scheduler_, network_, plan_, service_, [this](uint32_t number) {
        scheduler_.Trace("process " + std::to_string(number) + " is started again");
        Start(number);
      });
      scheduler_.OnAbort([this](Process& process) { faults_->OnAbort(process); });
      for (uint32_t number = 0; number < plan_.processes; ++number) Start(number);
      while (ended_ < plan_.processes) {
        if (scheduler_.now() > faults_->until() + kRecovery) scheduler_.Fail("the job has not recovered");
        scheduler_.SleepUntil(scheduler_.now() + kSecond / 10);
      }
    });
    const std::string found = "hash " + std::to_string(scheduler_.hash()) + ", " +
                              std::to_string(scheduler_.switches()) + " switches, " + std::to_string(faults_->calls()) +
                              " calls";
    scheduler_.Trace(found);
  }

 private:
  void Start(uint32_t number) {
    const auto member = std::make_shared<Member>();
    member->number = number;
    member->incarnation = ++incarnations_;
    const std::string name = "process " + std::to_string(number) + "." + std::to_string(incarnations_);
    member->process = &scheduler_.AddProcess(name);
    member->process->at_end = [member] { CloseAllOf(*member->process); };
    service_.Register(member);
    scheduler_.Spawn(*member->process, [this, member] {
      auto program =
          std::make_unique<MemberProgram>(scheduler_, network_, plan_, service_, *faults_, sums_of_all_, member);
      program->Run();
      program = nullptr;
      if (const size_t open = CountOpen(*member->process); open > 0) {
        scheduler_.Fail(member->process->name + " has left " + std::to_string(open) + " descriptors open");
      }
      member->is_done = true;
      ++ended_;
    });
  }

  // The job ends after some blocks in which all processes were members and no call failed.
  bool IsLast(size_t members, bool has_failed) {
    const bool is_calm = !has_failed && members == plan_.processes && scheduler_.now() >= faults_->until();
    blocks_ = is_calm ? blocks_ + 1 : 0;
    return blocks_ > kLastBlocks && faults_->have_struck();
  }

  Scheduler scheduler_;
  Network network_;
  JobPlan plan_;
  CoordinationService service_{scheduler_, [this](size_t members, bool failed) { return IsLast(members, failed); }};
  std::unique_ptr<Faults> faults_;
  SumsOfAll sums_of_all_;
  uint64_t incarnations_ = 0;
  uint32_t blocks_ = 0, ended_ = 0;
};

}  // namespace

void RunJobHistory(uint32_t seed) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // without these options, each large buffer costs page faults
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  std::set_terminate([] {
    if (Scheduler::current() != nullptr) Scheduler::Get().Abort();
    std::abort();
  });
  std::make_unique<JobHistory>(seed).release()->Run();
  _exit(0);  // runs no destructors, because the stacks of killed processes are never unwound
}

}  // namespace jaxcomm::simulated

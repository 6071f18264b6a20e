// Ranks in real processes, whose memory the others map; see fake/.
#include "cc/gpu/executor/ipc_peer_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/gpu/executor/fake/job.h"

namespace jaxcomm::fused {
namespace {

using std::chrono::milliseconds;

// Memory of all processes, for their tests to wait for each other.
struct Steps {
  std::atomic<int> done[16];

  // Waits until so many processes have come here.
  void Await(int step, int processes) {
    ++done[step];
    while (done[step] < processes) std::this_thread::sleep_for(milliseconds(1));
  }
};

// Another one for each peer memory. Tests beside this one may have the same process ids, in namespaces of their own.
std::string NameOf(const std::string& peer_memory) {
  static const unsigned ours = std::random_device()();
  return std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" + std::to_string(ours) + "-" +
         peer_memory;
}

// Runs `body(process, steps)` in processes of their own. All must end well but those that kill themselves.
void InProcesses(uint32_t count, const std::function<void(uint32_t, Steps&)>& body) {
  void* const memory = mmap(nullptr, sizeof(Steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  NameOf("");  // the same in all of them
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (uint32_t process = 0; process < count; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      body(process, *static_cast<Steps*>(memory));
      std::exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t& child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        << "process " << &child - children.data() << " ended with " << status;
  }
  munmap(memory, sizeof(Steps));
}

constexpr DeviceKey At(int process, int device) { return process << 16 | device; }

bool HasFile(const std::string& peer_memory) {
  return std::filesystem::exists("/dev/shm/jaxcomm-" + NameOf(peer_memory));
}

// The job of one process.
struct JobOf : Job {
  JobOf(const std::vector<DeviceKey>& keys, uint32_t process, const std::string& peer_memory = "0",
        int timeout_ms = 20'000)
      : JobOf(Slots::Find(keys, process).value(), peer_memory, timeout_ms) {}

  JobOf(const Slots& slots, const std::string& peer_memory, int timeout_ms)
      : Job(slots, [&](const AllOperands& operands) {
          std::map<int, Region> regions;
          for (const auto& [slot, its] : operands) regions[slots.all[slot].device] = {its.base(), its.bytes()};
          return std::make_unique<IpcPeerMemory>(NameOf(peer_memory), slots, regions, milliseconds(timeout_ms));
        }) {}
};

TEST(IpcPeerMemoryTest, SumsOverProcesses) {
  const std::vector<std::vector<DeviceKey>> all{
      {At(0, 0), At(1, 0)},
      {At(0, 0), At(1, 0), At(2, 0), At(3, 0)},
      {At(0, 1), At(0, 0), At(1, 0), At(2, 1)},            // two devices in a process
      {At(1, 0), At(1, 0), At(0, 0), At(3, 1), At(3, 1)},  // several ranks on a device, and numbers left out
  };
  for (const std::vector<DeviceKey>& keys : all) {
    InProcesses(4, [&](uint32_t process, Steps&) {
      fake::Machine machine(2);
      machine.SetProcessors(0, 4 + static_cast<int>(process));  // they agree on the fewest blocks
      if (!Slots::Find(keys, process).ok()) return;
      JobOf job(keys, process);
      ASSERT_TRUE(job.made().ok()) << job.made().message();
      EXPECT_FALSE(HasFile("0"));
      for (uint64_t call = 1; call <= kKeptCalls + 3; ++call) {
        job.Fill(call);
        job.LaunchAll();
        job.ExpectSums(call);
      }
      EXPECT_TRUE(job.ranks().Check().ok());
    });
  }
}

TEST(IpcPeerMemoryTest, ALateProcessIsWaitedForAndOneThatMissesTheDeadlineIsNamed) {
  InProcesses(3, [](uint32_t process, Steps& steps) {
    fake::Machine machine(1);
    JobOf job({At(0, 0), At(1, 0), At(2, 0)}, process);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    job.Fill(1);
    if (process == 1) std::this_thread::sleep_for(milliseconds(200));
    job.LaunchAll();
    job.ExpectSums(1);

    job.deadline = 0.3;
    if (process == 1) steps.Await(0, 3);
    const Status outcome = job.LaunchAndWait(process);
    if (process != 1) steps.Await(0, 3);
    EXPECT_EQ(outcome.code(), Code::kDeadlineExceeded);
    const std::string expected =
        process == 1 ? ": rank 1 of 3 found that others had given up." : ": rank 1 of 3 has not arrived after ";
    EXPECT_TRUE(Contains(outcome.message(), "DeadlineError: psum #2 over 'data'")) << outcome.message();
    EXPECT_TRUE(Contains(outcome.message(), expected)) << outcome.message();

    job.deadline = 60.0;
    job.Fill(3);
    job.LaunchAll();
    job.ExpectSums(3);
    EXPECT_TRUE(job.ranks().Check().ok());
  });
}

TEST(IpcPeerMemoryTest, AProcessThatDiesIsNamed) {
  InProcesses(3, [](uint32_t process, Steps&) {
    fake::Machine machine(1);
    JobOf job({At(0, 0), At(1, 0), At(2, 0)}, process);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    job.Fill(1);
    job.LaunchAll();
    job.ExpectSums(1);
    if (process == 2) raise(SIGKILL);
    job.deadline = 0.3;
    const Status outcome = job.LaunchAndWait(process);
    EXPECT_TRUE(Contains(outcome.message(), "rank 2 of 3 has not arrived after ")) << outcome.message();
  });
}

TEST(IpcPeerMemoryTest, OneThatDoesNotComeIsNamedAndGetsTheErrorLater) {
  InProcesses(3, [](uint32_t process, Steps& steps) {
    const std::vector<DeviceKey> keys{At(0, 0), At(1, 0), At(2, 0), At(2, 1)};
    fake::Machine machine(2);
    if (process == 2) steps.Await(0, 3);
    {
      JobOf job(keys, process, "0", /*timeout_ms=*/300);
      EXPECT_EQ(job.made().code(), Code::kDeadlineExceeded);
      EXPECT_TRUE(Contains(job.made().message(),
                           "DeadlineError: psum over 'data': ranks 2,3 of 4 (process 2) have not come to share memory "
                           "after 0.3 s.\n  Cure: "))
          << job.made().message();
      if (process != 2) {
        EXPECT_TRUE(HasFile("0"));
        steps.Await(0, 3);
      }
    }
    steps.Await(1, 3);
    EXPECT_FALSE(HasFile("0"));
    JobOf again(keys, process, "1");
    ASSERT_TRUE(again.made().ok()) << again.made().message();
    again.Fill(1);
    again.LaunchAll();
    again.ExpectSums(1);
  });
}

TEST(IpcPeerMemoryTest, NoFileIsLeftOfAProcessThatNeverComes) {
  InProcesses(1, [](uint32_t process, Steps&) {
    fake::Machine machine(1);
    EXPECT_FALSE(JobOf({At(0, 0), At(1, 0)}, process, "0", /*timeout_ms=*/10).made().ok());
    EXPECT_TRUE(HasFile("0"));
  });
  EXPECT_FALSE(HasFile("0"));
}

TEST(IpcPeerMemoryTest, AFailureOfOneIsTheErrorOfAll) {
  InProcesses(3, [](uint32_t process, Steps&) {
    const std::vector<DeviceKey> keys{At(0, 0), At(1, 0), At(2, 0)};
    fake::Machine machine(1);
    if (process == 1) machine.LimitAllocations(1 << 20);
    const JobOf job(keys, process, "0");
    EXPECT_EQ(job.made().message(), "psum over 'data': process 1: memory on GPU 0: out of memory");
    machine.LimitAllocations(SIZE_MAX);
    if (process == 2) machine.SetProcessors(0, 0);
    const JobOf again(keys, process, "1");
    EXPECT_EQ(again.made().message(), "psum over 'data': process 2: GPU 0 has fewer processors than ranks");
    machine.SetProcessors(0, 2);
    if (process == 0) machine.RefuseToOpen(true);
    const JobOf third(keys, process, "2");
    EXPECT_TRUE(Contains(third.made().message(),
                         "psum over 'data': process 0: GPU 0 cannot reach the memory of GPU 0 of process 1: CUDA IPC: "
                         "invalid value.\n  Cure: "))
        << third.made().message();
    machine.RefuseToOpen(false);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_TRUE(JobOf(keys, process, "3").made().ok());
  });
}

TEST(IpcPeerMemoryTest, AnOperandOutsideOfWhatOthersHaveOpenedIsAnErrorBeforeTheLaunch) {
  InProcesses(2, [](uint32_t process, Steps&) {
    fake::Machine machine(1);
    JobOf job({At(0, 0), At(1, 0)}, process);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    const Operands& its = job.operands().begin()->second;
    EXPECT_TRUE(job.ranks().CheckReach(process, its.base(), Job::kElements * 4).ok());
    for (std::byte* outside : {its.base() - 4, its.base() + its.bytes() - 4, static_cast<std::byte*>(nullptr)}) {
      const Status status = job.ranks().CheckReach(process, outside, 8);
      EXPECT_TRUE(Contains(status.message(),
                           "psum over 'data': an operand on GPU 0 lies outside of the memory that other processes have "
                           "opened.\n  Cure: "))
          << status.message();
    }
  });
}

TEST(IpcPeerMemoryTest, ClocksThatDisagreeTellInAllProcessesWhoWasLate) {
  InProcesses(3, [](uint32_t process, Steps& steps) {
    fake::Machine machine(1);
    machine.SetClock(0, int64_t{process} * 3'000'000'000'000);
    JobOf job({At(0, 0), At(1, 0), At(2, 0)}, process);
    ASSERT_TRUE(job.made().ok()) << job.made().message();
    for (int call = 0; call < 2; ++call) {
      steps.Await(call, 3);
      if (process == 2) std::this_thread::sleep_for(milliseconds(300));
      job.LaunchAll();
      machine.Wait();
    }
    steps.Await(2, 3);
    ASSERT_TRUE(job.ranks().RecordCalls().ok());
    const std::string json = job.stats().Json();
    EXPECT_TRUE(Contains(json, "\"calls\":2,\"failed\":0")) << json;
    EXPECT_TRUE(Contains(json, "\"late\":[0,0,2]")) << json;
    steps.Await(3, 3);  // nobody leaves before
  });
}

TEST(IpcPeerMemoryTest, MemoryIsFreedWhenNobodyHasItOpen) {
  InProcesses(2, [](uint32_t process, Steps& steps) {
    fake::Machine machine(1);
    const std::vector<DeviceKey> keys{At(0, 0), At(1, 0)};
    {
      JobOf job(keys, process, "0");
      ASSERT_TRUE(job.made().ok()) << job.made().message();
      const size_t before = machine.allocated();
      if (process == 0) {
        job.End();
        EXPECT_EQ(machine.allocated(), before - 1);  // its messages; the other process still has its block
        steps.Await(0, 2);
        steps.Await(1, 2);
      } else {
        steps.Await(0, 2);
        job.End();
        EXPECT_EQ(machine.allocated(), before - 2);
        steps.Await(1, 2);
      }
    }
    {
      const JobOf another(keys, process, "1");  // frees what the first has left
      EXPECT_EQ(machine.allocated(), 2u);
      steps.Await(2, 2);
    }
  });
}

}  // namespace
}  // namespace jaxcomm::fused

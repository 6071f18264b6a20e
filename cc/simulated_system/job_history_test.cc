// Runs histories of simulated jobs (job_history.h), each in a child process. These commands run more histories,
// beginning with a given seed, and one history with its trace:
//
//   SEED=2000 HISTORIES=100000 bazel run -c opt //cc/simulated_system:job_history_test
//   SEED=7 TRACE=1 bazel run -c opt //cc/simulated_system:job_history_test
#include "cc/simulated_system/job_history.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cc/transport/shm/peer_memory.h"
#include "gtest/gtest.h"

namespace jaxcomm::simulated {
namespace {

constexpr unsigned kLimit = 120;  // time limit of a history, in seconds

uint32_t FromEnvironment(const char* name, uint32_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? static_cast<uint32_t>(std::strtoul(value, nullptr, 10)) : otherwise;
}

struct Ended {
  bool is_right;
  std::string output;
};

// Runs a history in a child process, which terminates after the history.
Ended RunInChild(uint32_t seed) {
  const int file = memfd_create("output", MFD_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    dup2(file, STDERR_FILENO);
    alarm(kLimit);
    RunJobHistory(seed);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::string output(static_cast<size_t>(lseek(file, 0, SEEK_END)), 0);
  const ssize_t bytes = pread(file, output.data(), output.size(), 0);
  close(file);
  if (WIFSIGNALED(status)) output += std::string("ended by ") + strsignal(WTERMSIG(status));
  return {status == 0 && bytes == static_cast<ssize_t>(output.size()), output};
}

class JobHistoryTest : public testing::Test {
 protected:
  // Makes PeerMemory check, in a child process, whether this process may read other processes' memory. The forked
  // histories inherit the result.
  JobHistoryTest() { shm::PeerMemory(getpid(), 0, 0).CanRead(); }
};

TEST_F(JobHistoryTest, EveryHistoryEndsRight) {
  const bool has_seed = std::getenv("SEED") != nullptr;
  const uint32_t first = FromEnvironment("SEED", 0), histories = FromEnvironment("HISTORIES", has_seed ? 1 : 2000);
  const auto began = std::chrono::steady_clock::now();
  std::atomic<uint32_t> next{first};
  const auto run = [&] {
    for (uint32_t seed; (seed = next++) < first + histories;) {
      const Ended ended = RunInChild(seed);
      EXPECT_TRUE(ended.is_right) << "SEED=" << seed << "\n" << ended.output;
      if (histories == 1) std::fputs(ended.output.c_str(), stderr);
    }
  };
  std::vector<std::thread> processors;
  while (processors.size() < std::thread::hardware_concurrency()) processors.emplace_back(run);
  for (std::thread& processor : processors) processor.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  std::printf("%u histories, %.0f an hour\n", histories, histories / seconds.count() * 3600);
}

TEST_F(JobHistoryTest, ASeedMakesTheSameHistoryAgain) {
  setenv("TRACE", "1", /*overwrite=*/0);
  EXPECT_EQ(RunInChild(5).output, RunInChild(5).output);
}

}  // namespace
}  // namespace jaxcomm::simulated

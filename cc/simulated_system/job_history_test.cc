// Runs histories of simulated jobs (job_history.h), each in a child process. To run more histories, or one with its
// trace:
//
//   HISTORIES=100000 bazel run -c opt //cc/simulated_system:job_history_test
//   SEED=7 TRACE=1 bazel run -c opt //cc/simulated_system:job_history_test
#include "cc/simulated_system/job_history.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cc/transport/shm/peer_memory.h"
#include "gtest/gtest.h"

namespace jaxcomm::simulated {
namespace {

constexpr unsigned kLimit = 120;  // seconds of a history

uint32_t FromEnvironment(const char* name, uint32_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? static_cast<uint32_t>(std::strtoul(value, nullptr, 10)) : otherwise;
}

struct Ended {
  bool is_right;
  std::string output;
};

// Runs a history in a child process, which ends it.
Ended RunInChild(uint32_t seed) {
  int ends[2];
  if (pipe(ends) != 0) return {false, "no pipe"};
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    alarm(kLimit);
    RunJobHistory(seed);
  }
  close(ends[1]);
  std::string output;
  char part[4096];
  for (ssize_t bytes; (bytes = read(ends[0], part, sizeof(part))) > 0;) output.append(part, static_cast<size_t>(bytes));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) output += std::string("ended by ") + strsignal(WTERMSIG(status));
  return {status == 0, output};
}

class JobHistoryTest : public testing::Test {
 protected:
  // Decides whether system calls may read other processes' memory, which takes a child process.
  JobHistoryTest() { shm::PeerMemory(getpid(), 0, 0).CanRead(); }
};

TEST_F(JobHistoryTest, EveryHistoryEndsRight) {
  const bool has_seed = std::getenv("SEED") != nullptr;
  const uint32_t first = FromEnvironment("SEED", 0), histories = has_seed ? 1 : FromEnvironment("HISTORIES", 150);
  const auto began = std::chrono::steady_clock::now();
  for (uint32_t seed = first; seed < first + histories; ++seed) {
    const Ended ended = RunInChild(seed);
    EXPECT_TRUE(ended.is_right) << "SEED=" << seed << "\n" << ended.output;
    if (has_seed) std::fputs(ended.output.c_str(), stderr);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  std::printf("%u histories, %.0f an hour\n", histories, histories / seconds.count() * 3600);
}

TEST_F(JobHistoryTest, ASeedMakesTheSameHistoryAgain) {
  setenv("TRACE", "1", /*overwrite=*/0);
  EXPECT_EQ(RunInChild(5).output, RunInChild(5).output);
}

}  // namespace
}  // namespace jaxcomm::simulated

// A history is a run in which processes of one host make random calls, and one process, the victim, is killed or
// stopped at a random time. No process may get a wrong result, crash or hang, and the other processes' errors must name
// the victim's rank. To run more histories:
//
//   HISTORIES=200 bazel run -c opt //cc/executor/tests:killed_process_test
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/device_communicator.h"
#include "cc/executor/testing/random_calls.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kRanks = 4;
constexpr double kDeadline = 5;
constexpr std::chrono::seconds kLimit{60};

// Memory that all processes of a history share.
struct Board {
  struct Address {
    int fd;
    uint64_t nonce;
    pid_t pid;
  } addresses[kRanks];
  std::atomic<uint32_t> connected, calls;
  std::atomic<int> ends[kRanks];
};

// How a rank's part of a history ended: with an error that names the victim, with a wrong result, and so on.
enum End : int { kRuns, kNamed, kUnnamed, kWrong, kNotConnected, kCrashed };

// Whether the text names the rank: for rank 2, as in "rank 2" or "ranks 1,2".
bool Names(const std::string& text, uint32_t rank) {
  for (size_t at = text.find("rank"); at != std::string::npos; at = text.find("rank", at + 1)) {
    const size_t first = text.find_first_of("0123456789", at), end = text.find_first_not_of("0123456789,", first);
    if (("," + text.substr(first, end - first) + ",").find("," + std::to_string(rank) + ",") != std::string::npos)
      return true;
  }
  return false;
}

class Rank {
 public:
  Rank(Board& board, uint32_t rank, uint32_t seed) : board_(board), rank_(rank), seed_(seed) {}

  End Run(uint32_t victim) {
    executor_.SetDeadline(kDeadline);
    auto made = ShmTransport::Create(rank_, kRanks, &executor_.messages(), ShmTransport::ArenaBytes(kRanks));
    if (!made.ok()) return kNotConnected;
    transport_ = std::move(made.value());
    board_.addresses[rank_] = {transport_->fd(), transport_->nonce(), getpid()};
    ++board_.connected;
    Await(kRanks);
    for (uint32_t other = 0; other < kRanks; ++other) {
      const Board::Address& at = board_.addresses[other];
      if (other != rank_ && !transport_->AddPeer(other, at.nonce, OpenFile(at.pid, at.fd)).ok()) return kNotConnected;
    }
    ++board_.connected;
    Await(2 * kRanks);
    executor_.messages().Connect(transport_.get());
    std::vector<MessageRank> devices;
    for (uint32_t rank = 0; rank < kRanks; ++rank) devices.push_back({rank, rank});
    DeviceCommunicator communicator(executor_, lists_, ChooseDirect, std::make_shared<DeviceGroup>("all", devices, 0),
                                    rank_);
    for (uint32_t call = 0;; ++call) {
      ++board_.calls;
      std::mt19937 random(seed_ * 100003 + call);
      const size_t sizes[] = {1, 300, 5000, 40000, 300000};
      const size_t words = sizes[random() % 5];
      const auto [status, is_right] = CallAtRandom(communicator, call, words, random);
      if (status.ok() && !is_right) return kWrong;
      if (status.ok()) continue;
      // After the victim's end, another rank may fail in a transfer with the victim. That rank is missing in later
      // calls, so the errors of later calls may name that rank instead of the victim. As senders do not wait for their
      // receivers, the deadline of a later call may pass shortly before that rank's.
      bool is_named = Names(status.message(), victim);
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (!is_named && std::chrono::steady_clock::now() < limit) {
        for (uint32_t rank = 0; rank < kRanks; ++rank) {
          is_named = is_named || (board_.ends[rank] == kNamed && Names(status.message(), rank));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!is_named) std::fprintf(stderr, "rank %u, call %u: %s\n", rank_, call, status.message().c_str());
      return is_named ? kNamed : kUnnamed;
    }
  }

 private:
  void Await(uint32_t count) {
    while (board_.connected < count) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  Board& board_;
  const uint32_t rank_, seed_;
  MessageRegistry lists_;
  Executor executor_{2};
  std::unique_ptr<ShmTransport> transport_;
};

// Runs one history, and returns how the parts of all ranks except the victim ended.
std::vector<int> RunHistory(Board& board, uint32_t seed, int signal) {
  new (&board) Board{};
  std::mt19937 random(seed);
  const uint32_t victim = random() % kRanks;
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      board.ends[rank] = std::make_unique<Rank>(board, rank, seed).release()->Run(victim);
      for (;;) pause();  // if this process ended, errors might name its rank
    }
    children.push_back(child);
  }
  const uint32_t calls = 200 + random() % 2000;
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  while (board.calls < calls && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }
  kill(children[victim], signal);
  std::vector<int> ends;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const bool is_victim = rank == victim;
    while (!is_victim && board.ends[rank] == kRuns && std::chrono::steady_clock::now() < limit) {
      if (waitpid(children[rank], nullptr, WNOHANG) != 0) board.ends[rank] = kCrashed;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!is_victim) ends.push_back(board.ends[rank]);
  }
  for (const pid_t child : children) kill(child, SIGKILL);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  return ends;
}

class KilledProcessTest : public testing::TestWithParam<int> {};

TEST_P(KilledProcessTest, TheOthersGetRightResultsAndThenItsName) {
  void* const shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  const char* const asked = std::getenv("HISTORIES");
  const uint32_t histories = asked != nullptr ? static_cast<uint32_t>(std::atoi(asked)) : 2;
  for (uint32_t seed = 0; seed < histories; ++seed) {
    EXPECT_EQ(RunHistory(*static_cast<Board*>(shared), seed, GetParam()), std::vector<int>(kRanks - 1, kNamed))
        << "seed " << seed;
  }
  munmap(shared, sizeof(Board));
}

INSTANTIATE_TEST_SUITE_P(Signals, KilledProcessTest, testing::Values(SIGKILL, SIGSTOP));

}  // namespace
}  // namespace jaxcomm

// In a history, processes of one host make random calls, and one process, the victim, is killed or stopped at a random
// time. No process may get a wrong result, crash or hang, and the other processes' errors must name the victim's rank.
// To run more histories:
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
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Words = std::vector<uint32_t>;

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

uint32_t Word(uint32_t rank, uint32_t call, size_t index) {
  return (rank + 1) * 1000003u + call * 7919u + static_cast<uint32_t>(index);
}

Words Content(uint32_t rank, uint32_t call, size_t words) {
  Words content(words);
  for (size_t i = 0; i < words; ++i) content[i] = Word(rank, call, i);
  return content;
}

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
    const auto choose = [](Kind kind, const DeviceGroup&, int64_t bytes) -> DeviceCommunicator::Chosen {
      if (kind == Kind::kReduceScatter) return {"reduce_scatter/direct/4", "direct"};
      if (kind == Kind::kAllGather) return {"all_gather/direct/4", "direct"};
      return {bytes <= 16 << 10 ? "all_reduce/flat/4" : "all_reduce/direct/4", "direct"};
    };
    DeviceCommunicator communicator(executor_, lists_, choose, std::make_shared<DeviceGroup>("all", devices, 0), rank_);
    for (uint32_t call = 0;; ++call) {
      ++board_.calls;
      bool is_right = false;
      const Status status = Call(communicator, call, &is_right);
      if (status.ok() && !is_right) return kWrong;
      if (status.ok()) continue;
      // After the victim's end, another rank may fail in a transfer with the victim. That rank is missing in later
      // calls, so the errors of later calls may name that rank instead of the victim.
      bool is_named = Names(status.message(), victim);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        is_named = is_named || (board_.ends[rank] == kNamed && Names(status.message(), rank));
      }
      if (!is_named) std::fprintf(stderr, "rank %u, call %u: %s\n", rank_, call, status.message().c_str());
      return is_named ? kNamed : kUnnamed;
    }
  }

 private:
  void Await(uint32_t count) {
    while (board_.connected < count) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  // Makes a random call. All ranks draw the same calls.
  Status Call(DeviceCommunicator& communicator, uint32_t call, bool* is_right) {
    std::mt19937 random(seed_ * 100003 + call);
    const size_t sizes[] = {1, 300, 5000, 40000, 300000};
    const size_t words = sizes[random() % 5];
    const auto bytes = static_cast<int64_t>(words * sizeof(uint32_t));
    const Words mine = Content(rank_, call, words * kRanks);
    Words result(words * kRanks), expected(words * kRanks);
    const auto* const operand = reinterpret_cast<const std::byte*>(mine.data());
    auto* const stored = reinterpret_cast<std::byte*>(result.data());
    Status status;
    switch (random() % 5) {
      case 0:
        status = communicator.AllReduce(operand, stored, bytes, DType::kU32, Reduction::kSum);
        for (size_t i = 0; i < words; ++i) {
          for (uint32_t rank = 0; rank < kRanks; ++rank) expected[i] += Word(rank, call, i);
        }
        break;
      case 1:
        status = communicator.ReduceScatter(operand, stored, bytes, DType::kU32, Reduction::kSum);
        for (size_t i = 0; i < words; ++i) {
          for (uint32_t rank = 0; rank < kRanks; ++rank) expected[i] += Word(rank, call, rank_ * words + i);
        }
        break;
      case 2:
        status = communicator.AllGather(operand, stored, bytes);
        for (size_t i = 0; i < words * kRanks; ++i) {
          expected[i] = Word(static_cast<uint32_t>(i / words), call, i % words);
        }
        break;
      case 3: {
        const uint32_t from = (rank_ + kRanks - 1) % kRanks;
        const auto in = communicator.Receive(stored, bytes, from, "shift");
        const auto out = communicator.Send(operand, bytes, (rank_ + 1) % kRanks, "shift");
        const Status first = communicator.Wait(in), second = communicator.Wait(out);
        status = first.ok() ? second : first;
        for (size_t i = 0; i < words; ++i) expected[i] = Word(from, call, i);
        break;
      }
      default:
        for (uint32_t i = 1; i < kRanks && status.ok(); ++i) {
          const uint32_t to = (rank_ + i) % kRanks, from = (rank_ + kRanks - i) % kRanks;
          status = communicator.Exchange(operand + to * bytes, to, stored + from * bytes, from, bytes);
          for (size_t k = 0; k < words; ++k) expected[from * words + k] = Word(from, call, rank_ * words + k);
        }
    }
    *is_right = result == expected;
    return status;
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

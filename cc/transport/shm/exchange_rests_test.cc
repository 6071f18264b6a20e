// Ranks that wait in an exchange while another thread has their processor.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cc/transport/shm/exchanges.h"
#include "gtest/gtest.h"

namespace jaxcomm::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void MoveTo(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

void ComputeFor(milliseconds time) {
  for (const Clock::time_point end = Clock::now() + time; Clock::now() < end;) {
  }
}

// The processes of two ranks. Each rank is a thread.
class ExchangeRestsTest : public testing::Test {
 protected:
  static constexpr int kTries = 20;

  ExchangeRestsTest() {
    for (uint32_t process = 0; process < 2; ++process) {
      auto made = MemoryFile::Create(process, 2, /*arena_bytes=*/1 << 20);
      EXPECT_TRUE(made.ok()) << made.status().message();
      files_.push_back(made.value());
      exchanges_.push_back(std::make_unique<Exchanges>(files_[process]));
    }
    EXPECT_EQ(sched_getaffinity(0, sizeof(allowed_), &allowed_), 0);
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &allowed_)) processors_.push_back(processor);
    }
  }
  ~ExchangeRestsTest() override { EXPECT_EQ(sched_setaffinity(0, sizeof(allowed_), &allowed_), 0); }

  bool Call(uint32_t rank) {
    const std::vector<uint32_t> processes = {0, 1};
    const std::vector<std::byte> bytes(8);
    std::vector<Exchanges::Member> members;
    for (uint32_t each = 0; each < 2; ++each) {
      members.push_back({files_[each].get(), nullptr, false, [] { return true; }});
    }
    const auto pending = exchanges_[rank]->Join(
        {{7, calls_[rank]++, 0, 0}, processes, rank, 1, {{bytes.data(), 8, 0}}, Clock::now()}, members);
    return pending && pending->Finish({std::chrono::seconds(10), std::chrono::seconds(10)},
                                      [](const std::vector<Exchanged>&) { return true; });
  }

  // Runs a call of rank 0, on the first processor, and of rank 1, which comes after `wait`. Returns whether rank 0 then
  // rests.
  bool RestsAfter(int processor_of_rank_1, const std::function<void()>& wait) {
    std::thread rank_1([&] {
      MoveTo(processor_of_rank_1);
      EXPECT_TRUE(Call(1));  // so that rank 0 knows the processor of rank 1
      wait();
      EXPECT_TRUE(Call(1));
    });
    MoveTo(processors_[0]);
    EXPECT_TRUE(Call(0));
    files_[0]->writable().rests_until = 0;
    EXPECT_TRUE(Call(0));
    rank_1.join();
    return files_[0]->writable().rests_until != 0;
  }

  std::vector<std::shared_ptr<MemoryFile>> files_;
  std::vector<std::unique_ptr<Exchanges>> exchanges_;
  cpu_set_t allowed_;
  std::vector<int> processors_;
  uint32_t calls_[2] = {0, 0};
};

// Other programs of this machine may cause a rest in some tries.
TEST_F(ExchangeRestsTest, ARankDoesNotRestIfARankThatItAwaitsHasComputedOnItsProcessor) {
  int rests = 0;
  for (int i = 0; i < kTries; ++i) rests += RestsAfter(processors_[0], [] { ComputeFor(milliseconds(8)); }) ? 1 : 0;
  EXPECT_LT(rests, kTries);
}

TEST_F(ExchangeRestsTest, ARankRestsIfAnotherProgramComputesOnItsProcessor) {
  if (processors_.size() < 2) GTEST_SKIP() << "needs two processors";
  std::atomic<bool> ends{false};
  std::thread other([&] {
    MoveTo(processors_[0]);
    while (!ends) {
    }
  });
  int rests = 0;
  for (int i = 0; i < kTries; ++i) {
    rests += RestsAfter(processors_[1], [] { std::this_thread::sleep_for(milliseconds(8)); }) ? 1 : 0;
  }
  ends = true;
  other.join();
  EXPECT_GT(rests, 0);
}

}  // namespace
}  // namespace jaxcomm::shm

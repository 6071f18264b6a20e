// A device's call for which its process has no memory: an error as a value, on every device, and the next call works.
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/device_communicator.h"
#include "cc/executor/message_call.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

// Sanitizers bring operators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// The size of the block that this thread is refused next, within kAround bytes; 0: none.
thread_local size_t refused_bytes = 0;
constexpr size_t kAround = 32;  // the bytes that a shared object takes more

void* Allocate(size_t bytes) {
  if (refused_bytes > 0 && bytes >= refused_bytes && bytes <= refused_bytes + kAround) {
    refused_bytes = 0;
    throw std::bad_alloc();
  }
  void* const block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace jaxcomm {
namespace {

class LowMemory : public testing::Test {
 protected:
  LowMemory() : network_(2, /*seed=*/1) {
    const auto choose = [](Kind, const DeviceGroup&, int64_t) {
      return DeviceCommunicator::Chosen{"all_reduce/direct/2", "direct"};
    };
    for (uint32_t process = 0; process < 2; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_[process]->messages());
      executors_[process]->messages().Connect(&network_.transport(process));
      executors_[process]->SetDeadline(0.3);
      const auto group =
          std::make_shared<DeviceGroup>("devices", std::vector<MessageGroup::Rank>{{0, 0}, {1, 1}}, /*instance=*/0);
      ranks_.push_back(std::make_unique<DeviceCommunicator>(*executors_[process], lists_, choose, group, process));
    }
  }
  ~LowMemory() override { network_.Stop(); }

  // Both sum; the first is refused a block of `refused` bytes; 0: none.
  std::vector<Status> Sum(size_t refused) {
    std::vector<Status> ends(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> operand(kFloats, 1), result(kFloats);
        refused_bytes = rank == 0 ? refused : 0;
        ends[rank] = ranks_[rank]->AllReduce(reinterpret_cast<std::byte*>(operand.data()),
                                             reinterpret_cast<std::byte*>(result.data()), 4 * kFloats, DType::kF32,
                                             Reduction::kSum);
        refused_bytes = 0;
        if (ends[rank].ok()) {
          EXPECT_EQ(result, std::vector<float>(kFloats, 2));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }
  void ExpectWorks() {
    for (const auto& executor : executors_) executor->SetDeadline(30);
    for (const Status& end : Sum(/*refused=*/0)) EXPECT_TRUE(end.ok()) << end.message();
  }

  static constexpr size_t kFloats = 100000;

  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  MessageRegistry lists_;
  std::vector<std::unique_ptr<DeviceCommunicator>> ranks_;
};

TEST_F(LowMemory, WithoutATransferTheDeviceFailsAndIsNamedAtTheDeadline) {
  const std::vector<Status> ends = Sum(sizeof(Transfer));
  EXPECT_NE(ends[0].message().find("has no memory for the call"), std::string::npos) << ends[0].message();
  EXPECT_NE(ends[1].message().find("rank 0 of 2 has not arrived"), std::string::npos) << ends[1].message();
  ExpectWorks();
}

TEST_F(LowMemory, WithoutACallAllRanksFailAtOnceAndTheRankIsNamed) {
  ExpectWorks();  // a first call's blocks may be as large as a call
  for (const Status& end : Sum(sizeof(MessageCall))) {
    EXPECT_NE(end.message().find("rank 0 has no memory for the call"), std::string::npos) << end.message();
  }
  ExpectWorks();
}

// Both of a process's ranks at two sites, which have waited for the plan of the run; whichever block the process lacks.
TEST(LowMemoryOfWaitingRanks, EachIsCalledBack) {
  SimulatedNetwork network(1, /*seed=*/1);
  for (size_t refused = 24; refused <= 1400; refused += 32) {
    Executor executor(1);
    network.Connect(0, &executor.messages());
    executor.messages().Connect(&network.transport(0));
    executor.SetDeadline(0.5);
    MessageRegistry lists;
    const std::string list = "all_reduce/direct/2";
    ASSERT_TRUE(executor.messages().plans().Prepare(nullptr, {{8, 0}}));
    std::vector<float> values(4096);
    std::vector<std::promise<Status>> ends(4);
    std::vector<std::shared_ptr<MessageSite>> sites;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t rank = i % 2;
      if (rank == 0) {
        const auto site =
            MessageSite::Make({"psum", "data", "auto", "train.py:57"}, Kind::kAllReduce, Reduction::kSum, 8,
                              /*site=*/i / 2, {{{{0, 0}, {0, 1}}, list, {lists.Find(list, 0), lists.Find(list, 1)}}},
                              /*process=*/0);
        ASSERT_TRUE(site.ok());
        sites.push_back(site.value());
        sites.back()->FollowPlans();
        ASSERT_TRUE(sites.back()->SetLeaves({{DType::kF32, 4096}}, executor.stats()).ok());
      }
      auto* const bytes = reinterpret_cast<std::byte*>(&values[1024 * i]);
      sites.back()->Arrive(executor, /*run=*/0, rank, {{bytes}, {bytes}},
                           [&ends, i](const Status& status) { ends[i].set_value(status); });
    }
    refused_bytes = refused;
    try {
      executor.messages().plans().Decide(/*commit=*/false);
    } catch (const std::bad_alloc&) {
      // Before a rank has begun: the watch of deadlines has both begin.
    }
    refused_bytes = 0;
    for (auto& end : ends) {
      EXPECT_EQ(end.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready) << refused;
    }
    EXPECT_TRUE(executor.messages().Disconnect(Clock::now() + std::chrono::seconds(30)).ok()) << refused;
  }
  network.Stop();
}

}  // namespace
}  // namespace jaxcomm
#endif

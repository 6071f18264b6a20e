// Calls for which a process lacks memory. Every device must get an error, and the next call must work.
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/device_communicator.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

// Sanitizers define their own operators new and delete.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// If this value is n > 0, the allocator refuses the n-th over-aligned block that this thread requests from now on.
// Memory for received messages is over-aligned.
thread_local size_t refused_block = 0;

void* Allocate(size_t bytes, size_t alignment) {
  if (alignment > alignof(std::max_align_t) && refused_block > 0 && --refused_block == 0) throw std::bad_alloc();
  void* const block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) { return Allocate(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }

namespace jaxcomm {
namespace {

class LowMemory : public testing::Test {
 protected:
  LowMemory() : network_(2, /*seed=*/1) {
    const auto choose = [](Kind, const DeviceGroup&, int64_t) {
      return DeviceCommunicator::ChosenList{"all_reduce/direct/2", "direct"};
    };
    for (uint32_t process = 0; process < 2; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_[process]->messages());
      executors_[process]->messages().Connect(&network_.transport(process));
      const auto group =
          std::make_shared<DeviceGroup>("devices", std::vector<MessageRank>{{0, 0}, {1, 1}}, /*instance=*/0);
      ranks_.push_back(std::make_unique<DeviceCommunicator>(*executors_[process], lists_, choose, group, process));
    }
  }
  ~LowMemory() override { network_.Stop(); }

  // Runs a sum of both ranks, in which rank 0 is refused a block. Returns whether a block was refused.
  bool Sum(size_t floats, size_t refused, std::vector<Status>& ends) {
    ends = std::vector<Status>(2);
    bool was_refused = false;
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> operand(floats, 1), result(floats);
        refused_block = rank == 0 ? refused : 0;
        ends[rank] = ranks_[rank]->AllReduce(reinterpret_cast<std::byte*>(operand.data()),
                                             reinterpret_cast<std::byte*>(result.data()),
                                             static_cast<int64_t>(4 * floats), DType::kF32, Reduction::kSum);
        if (rank == 0) was_refused = refused > 0 && refused_block == 0;
        refused_block = 0;
        if (ends[rank].ok()) {
          EXPECT_EQ(result, std::vector<float>(floats, 2));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return was_refused;
  }

  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  MessageRegistry lists_;
  std::vector<std::unique_ptr<DeviceCommunicator>> ranks_;
};

// Each call takes memory for received messages; a smaller call may use an earlier call's memory.
TEST_F(LowMemory, TheCallFailsOnAllRanksAndNamesTheRank) {
  size_t floats = 1 << 20, refusals = 0;
  bool was_refused = true;
  for (size_t refused = 1; was_refused; ++refused, floats += 1024) {
    std::vector<Status> ends;
    was_refused = Sum(floats, refused, ends);
    const bool fails = !ends[0].ok();
    for (const Status& end : ends) {
      EXPECT_EQ(end.ok(), !fails) << end.message();
      if (!fails) continue;
      EXPECT_NE(end.message().find("rank 0 has no memory for the "), std::string::npos) << end.message();
    }
    refusals += fails ? 1 : 0;
    EXPECT_FALSE(Sum(floats, /*refused=*/0, ends));
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.message();
  }
  EXPECT_GT(refusals, 0u);
}

}  // namespace
}  // namespace jaxcomm
#endif

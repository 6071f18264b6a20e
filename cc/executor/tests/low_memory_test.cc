// Calls for which a process lacks memory. Every device must get an error, and the next call must work.
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/executor/device_communicator.h"
#include "cc/executor/messages/message_call.h"
#include "cc/executor/threads/call_threads.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

// Sanitizers define their own operators new and delete.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

// If not 0: refuses the next block of refused_bytes to refused_bytes + kAround bytes that this thread allocates.
thread_local size_t refused_bytes = 0;
constexpr size_t kAround = 32;  // the extra bytes that make_shared needs for an object
// If not 0: refuses the refused_block-th block that this thread allocates from now on.
thread_local size_t refused_block = 0;

void* Allocate(size_t bytes) {
  if (refused_block > 0 && --refused_block == 0) throw std::bad_alloc();
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
          std::make_shared<DeviceGroup>("devices", std::vector<MessageRank>{{0, 0}, {1, 1}}, /*instance=*/0);
      ranks_.push_back(std::make_unique<DeviceCommunicator>(*executors_[process], lists_, choose, group, process));
    }
  }
  ~LowMemory() override { network_.Stop(); }

  // Runs a sum of both ranks, in which rank 0 is refused a block of `refused` bytes. 0 refuses no block.
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
  ExpectWorks();  // a call before Sum, because a first call may allocate other blocks as large as a MessageCall
  for (const Status& end : Sum(sizeof(MessageCall))) {
    EXPECT_NE(end.message().find("rank 0 has no memory for the call"), std::string::npos) << end.message();
  }
  ExpectWorks();
}

class LowMemoryOfWaitingRanks : public testing::Test {
 protected:
  LowMemoryOfWaitingRanks() : network_(1, /*seed=*/1) {}
  ~LowMemoryOfWaitingRanks() override { network_.Stop(); }

  void Start() {
    ends_ = std::vector<std::promise<Status>>(4);
    executor_ = std::make_unique<Executor>(1);
    network_.Connect(0, &executor_->messages());
    executor_->messages().Connect(&network_.transport(0));
    executor_->SetDeadline(0.1);
    ASSERT_TRUE(plans().Prepare(nullptr, {{8, 0}}));
  }
  PlanSelector& plans() { return executor_->messages().plans(); }
  std::shared_ptr<MessageSite> MakeSite(uint32_t number) {
    const std::string list = "all_reduce/direct/2";
    auto made =
        MessageSite::Make({"psum", "data", "auto", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 8, number,
                          {{{{0, 0}, {0, 1}}, list, {lists_.Find(list, 0), lists_.Find(list, 1)}}}, /*process=*/0);
    EXPECT_TRUE(made.ok());
    EXPECT_TRUE(made.value()->SetLeaves({{DType::kF32, 4096}}, executor_->stats()).ok());
    return made.value();
  }
  // `end`: the index in `ends_`.
  void Arrive(MessageSite& site, uint32_t rank, size_t end) {
    auto* const bytes = reinterpret_cast<std::byte*>(&values_[1024 * end]);
    site.Arrive(*executor_, /*run=*/0, rank, {{bytes}, {bytes}},
                [this, end](const Status& status) { ends_[end].set_value(status); });
  }
  bool HasEnded(size_t end) {
    return ends_[end].get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  }
  bool Disconnect() { return executor_->messages().Disconnect(Clock::now() + std::chrono::seconds(30)).ok(); }

  SimulatedNetwork network_;
  MessageRegistry lists_;
  std::vector<float> values_ = std::vector<float>(4096);
  std::vector<std::promise<Status>> ends_;
  std::unique_ptr<Executor> executor_;
};

// Two ranks of a process wait at each of two sites for the plan of the run. Each round refuses a block of another size.
TEST_F(LowMemoryOfWaitingRanks, EachIsCalledBack) {
  for (size_t refused = 24; refused <= 1400; refused += 32) {
    Start();
    const std::vector<std::shared_ptr<MessageSite>> sites{MakeSite(0), MakeSite(1)};
    for (uint32_t i = 0; i < 4; ++i) Arrive(*sites[i / 2], /*rank=*/i % 2, i);
    refused_bytes = refused;
    try {
      plans().Decide(/*commit=*/false);
    } catch (const std::bad_alloc&) {
      // Decide may throw before a rank has begun. The deadline watch then starts all ranks.
    }
    refused_bytes = 0;
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(HasEnded(i)) << refused;
    EXPECT_TRUE(Disconnect()) << refused;
  }
}

// The refused blocks are about as large as the memory of a waiting rank.
TEST_F(LowMemoryOfWaitingRanks, ARankThatCannotWaitLeavesNothingThatDoes) {
  for (size_t refused = 152; refused <= 600; refused += 32) {
    Start();
    const auto site = MakeSite(0);
    refused_bytes = refused;
    try {
      Arrive(*site, /*rank=*/0, 0);
      refused_bytes = 0;
      Arrive(*site, /*rank=*/1, 1);
      plans().Decide(/*commit=*/false);
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(HasEnded(i)) << refused;
    } catch (const std::bad_alloc&) {
      refused_bytes = 0;
      EXPECT_FALSE(executor_->messages().waiting()) << refused;
    }
    EXPECT_TRUE(Disconnect()) << refused;
  }
}

// The site has two schedules. Each round refuses another of the blocks that SetLeaves allocates.
TEST(LowMemoryOfAFirstCall, TheNextOneSetsTheLeaves) {
  Executor executor(1);
  MessageRegistry lists;
  bool lacked = true;
  for (size_t refused = 1; lacked; ++refused) {
    std::vector<std::shared_ptr<MessageSite>> sites;
    for (const std::string list : {"all_reduce/direct/4", "all_reduce/ring/4"}) {
      MessageGroup group{{}, list, {}};
      for (uint32_t rank = 0; rank < 4; ++rank) {
        group.ranks.push_back({0, rank});
        group.lists.push_back(lists.Find(list, rank));
      }
      sites.push_back(MessageSite::Make({"psum", "data", "plan", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum}, 8,
                                        /*site=*/0, {group}, /*process=*/0)
                          .value());
    }
    const std::vector<std::shared_ptr<MessageSite>> others{sites[1]};
    sites[0]->SelectFrom(others, executor.messages().SelectorOf(*sites[0], others, {/*rank=*/2, 0.01}, /*step=*/0));
    const std::vector<Leaf> leaves{{DType::kF32, 4096}};
    refused_block = refused;
    try {
      EXPECT_TRUE(sites[0]->SetLeaves(leaves, executor.stats()).ok()) << refused;
      lacked = refused_block == 0;
    } catch (const std::bad_alloc&) {
      EXPECT_TRUE(sites[0]->SetLeaves(leaves, executor.stats()).ok()) << refused;
    }
    refused_block = 0;
  }
}

// The first WatchDeadlines is refused its first or its second allocation, and the next WatchDeadlines must start the
// watch. After its first run, the watch must run again, although the timer's thread is refused its next allocation.
TEST(LowMemoryOfTheWatch, TheNextCallHasDeadlinesWatched) {
  for (size_t refused = 1; refused <= 2; ++refused) {
    std::promise<void> looked;
    int looks = 0;
    CallThreads threads(/*workers=*/1, [&](Clock::time_point, double) {
      if (++looks == 1) refused_block = 1;
      if (looks == 2) refused_block = 0, looked.set_value();
      return looks < 2;
    });
    ASSERT_TRUE(threads.Start());
    threads.SetDeadline(0.1);
    refused_block = refused;
    try {
      threads.WatchDeadlines();
    } catch (const std::bad_alloc&) {
    }
    refused_block = 0;
    threads.WatchDeadlines();
    EXPECT_EQ(looked.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready) << refused;
  }
}

}  // namespace
}  // namespace jaxcomm
#endif

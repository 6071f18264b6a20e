// Processes with different steps, and processes that cannot join a call.
#include <sys/resource.h>

#include <cstdint>
#include <deque>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr uint32_t kProcesses = 3;
constexpr int64_t kElements = 1000;

// While this object lives, the process gets only a little more memory, which is enough for small blocks and a thread.
class LittleMemory {
 public:
  LittleMemory() {
    getrlimit(RLIMIT_AS, &before_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit now = {static_cast<rlim_t>(pages) * 4096 + (rlim_t{32} << 20), before_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(FailedCallsTest, AStepMissesTheLaunchOfAnotherOneThatFailedAtTheDeadline) {
  const Status late(Code::kDeadlineExceeded, "late"), differ = InvalidArgument("differ");
  FailedCalls failed;
  failed.Add({77, 3, 5, 0}, late, /*step=*/1);
  failed.Add({77, 3, 6, 0}, late, /*step=*/2);
  failed.Add({77, 4, 0, 0}, late, /*step=*/1);
  failed.Add({77, 4, 1, 0}, differ, /*step=*/1);
  EXPECT_FALSE(failed.IsMissed({77, 3, 0, 0}, 1));
  EXPECT_FALSE(failed.IsMissed({77, 3, 0, 0}, 2));
  EXPECT_TRUE(failed.IsMissed({77, 3, 0, 0}, 3));
  EXPECT_FALSE(failed.IsMissed({77, 4, 0, 0}, 3));
  EXPECT_FALSE(failed.IsMissed({77, 2, 0, 0}, 3));
  EXPECT_FALSE(failed.IsMissed({76, 3, 0, 0}, 3));
}

class UnlikeSteps : public testing::Test {
 protected:
  UnlikeSteps() : network_(kProcesses, /*seed=*/1) {
    for (uint32_t process = 0; process < kProcesses; ++process) {
      executors_.push_back(std::make_unique<Executor>(1));
      network_.Connect(process, &executors_[process]->messages());
      executors_[process]->messages().Connect(&network_.transport(process));
    }
  }
  ~UnlikeSteps() override { network_.Stop(); }

  // Returns the site of call number `number` of a step, in one process. All calls sum over the same devices.
  std::shared_ptr<MessageSite> MakeSite(uint32_t process, uint64_t step_hash, uint32_t calls = 1, uint32_t number = 0,
                                        int64_t elements = kElements) {
    MessageGroup group{{}, "all_reduce/direct/3", {}};
    for (uint32_t rank = 0; rank < kProcesses; ++rank) {
      group.ranks.push_back({rank, 10 * rank});
      group.lists.push_back(rank == process ? registry_.Find(group.list, rank) : nullptr);
    }
    const auto step = std::make_shared<Step>();
    step->hash = step_hash;
    step->calls = calls;
    const std::string where = "train.py:" + std::to_string(step_hash);
    auto site =
        MessageSite::Make({"psum", "axis " + std::to_string(step_hash), "none", where, step, number},
                          {Kind::kAllReduce, Reduction::kSum}, CommunicatorOf({group}), number, {group}, process);
    EXPECT_TRUE(site.ok()) << site.status().message();
    EXPECT_TRUE(site.value()->SetLeaves({{DType::kF32, 4 * elements}}, executors_[process]->stats()).ok());
    return site.value();
  }

  std::future<Status> Arrive(uint32_t process, const std::shared_ptr<MessageSite>& site, int64_t run) {
    const auto end = std::make_shared<std::promise<Status>>();
    values_.push_back(std::vector<float>(static_cast<size_t>(site->layout().payload()) / 4, 1));
    auto* bytes = reinterpret_cast<std::byte*>(values_.back().data());
    executors_[process]->messages().Arrive(site, run, process, {{bytes}, {bytes}},
                                           [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }

  void ExpectSum(std::vector<std::future<Status>> ends) {
    for (auto& end : ends) {
      const Status status = end.get();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (uint32_t i = 0; i < kProcesses; ++i) {
      EXPECT_EQ(values_[values_.size() - 1 - i], std::vector<float>(kElements, kProcesses));
    }
  }

  MessageRegistry registry_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::deque<std::vector<float>> values_;
};

TEST_F(UnlikeSteps, WithEqualCallsCallTogether) {
  for (int64_t run = 0; run < 3; ++run) {
    std::vector<std::future<Status>> ends;
    for (uint32_t process = 0; process < kProcesses; ++process) {
      ends.push_back(Arrive(process, MakeSite(process, /*step_hash=*/50 + process), 100 * process + run));
    }
    ExpectSum(std::move(ends));
  }
}

TEST_F(UnlikeSteps, WithMoreCallsInOneAreNamedAtTheFirst) {
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < kProcesses; ++process) {
    ends.push_back(Arrive(process, MakeSite(process, 50 + process, /*calls=*/process == 2 ? 2 : 1), 1));
  }
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_EQ(message.find("MismatchError: psum #1 over 'axis 5"), 0u) << message;
    EXPECT_NE(message.find("plan none, call 1 of 2, at train.py:52"), std::string::npos) << message;
    EXPECT_NE(message.find("plan none, at train.py:5"), std::string::npos) << message;
  }
}

TEST_F(UnlikeSteps, AfterOneLaunchedNoneTheNextOneOfEachIsTheSame) {
  for (auto& executor : executors_) executor->SetDeadline(0.3);
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < 2; ++process) ends.push_back(Arrive(process, MakeSite(process, 50), 1));
  for (auto& end : ends) EXPECT_EQ(end.get().code(), Code::kDeadlineExceeded);
  ends.clear();
  // Repeats the notice that the other processes have sent, because their notices may still be on their way.
  executors_[2]->messages().OnNotice(0, Encode(Failure{{MakeSite(2, 50)->communicator(), 0, 0, 0},
                                                       Status(Code::kDeadlineExceeded, "late"),
                                                       /*step=*/50}));
  for (auto& executor : executors_) executor->SetDeadline(60);
  for (uint32_t process = 0; process < kProcesses; ++process) {
    ends.push_back(Arrive(process, MakeSite(process, 51), 2));
  }
  ExpectSum(std::move(ends));
}

TEST_F(UnlikeSteps, ARankWhoseProcessGetsNoThreadFailsTheOthers) {
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < 2; ++process) ends.push_back(Arrive(process, MakeSite(process, 50), 1));
  const auto site = MakeSite(2, 50);
  {
    const NoThreads none;
    ends.push_back(Arrive(2, site, 1));
  }
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_NE(message.find("the system lets this process start no thread."), std::string::npos) << message;
  }
  ends.clear();
  for (uint32_t process = 0; process < kProcesses; ++process) ends.push_back(Arrive(process, MakeSite(process, 50), 2));
  ExpectSum(std::move(ends));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(UnlikeSteps, ARankWhoseProcessGetsNoMemoryFailsTheOthers) {
  constexpr int64_t kLarge = 24 << 20;  // elements; no block of such a call fits into the heap's free memory
  std::vector<std::shared_ptr<MessageSite>> sites;
  for (uint32_t process = 0; process < kProcesses; ++process) sites.push_back(MakeSite(process, 50, 1, 0, kLarge));
  std::vector<std::future<Status>> ends;
  for (uint32_t process = 0; process < 2; ++process) ends.push_back(Arrive(process, sites[process], 1));
  std::promise<void> has_threads;
  executors_[2]->Delay(Clock::duration::zero(), [&has_threads](const Status&) { has_threads.set_value(); });
  has_threads.get_future().wait();
  std::vector<float> mine(kLarge);
  auto* bytes = reinterpret_cast<std::byte*>(mine.data());
  std::promise<Status> end;
  {
    const LittleMemory limited;
    executors_[2]->messages().Arrive(sites[2], 1, 2, {{bytes}, {bytes}},
                                     [&end](const Status& status) { end.set_value(status); });
    ends.push_back(end.get_future());
    ends.back().wait();
  }
  for (auto& each : ends) {
    const std::string message = each.get().message();
    EXPECT_NE(message.find(": rank 2 has no memory for the "), std::string::npos) << message;
  }
}
#endif

}  // namespace
}  // namespace jaxcomm

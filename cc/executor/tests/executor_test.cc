#include "cc/executor/executor.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/program/testing/by_hand.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;

// A program that first adds the chunks of all ranks but the last, and then adds the last rank's chunks to these sums.
std::shared_ptr<const Program> LastJoins(uint32_t ranks) {
  std::vector<PlainOp> ops;
  for (uint32_t chunk = 0; chunk + 1 < ranks; ++chunk) ops.push_back({chunk, chunk, Everybody(ranks - 1), {chunk}, {}});
  for (uint32_t chunk = 0; chunk + 1 < ranks; ++chunk) {
    ops.push_back({0, chunk, {chunk, ranks - 1}, Everybody(ranks), {chunk}});
  }
  return ByHand(ranks, ranks - 1, ops);
}

std::shared_ptr<LocalSite> MakeSite(std::shared_ptr<const Program> program, CallSiteStats& stats,
                                    std::vector<Leaf> leaves, Kind kind = Kind::kAllReduce) {
  auto site = std::make_shared<LocalSite>("psum", "data", "test", kind, Reduction::kSum, std::move(program));
  EXPECT_TRUE(site->SetLeaves(leaves, stats).ok());
  return site;
}

// A buffer of floats per rank, which is both the rank's operand and its result. Element i is rank + i % 100.
class Ranks {
 public:
  Ranks(uint32_t ranks, size_t elements) : buffers_(ranks, std::vector<float>(elements)) { Fill(); }

  void Fill() {
    for (size_t rank = 0; rank < buffers_.size(); ++rank) {
      for (size_t i = 0; i < buffers_[rank].size(); ++i) buffers_[rank][i] = static_cast<float>(rank + i % 100);
    }
  }

  std::future<Status> Arrive(Executor& executor, const std::shared_ptr<LocalSite>& site, uint32_t rank,
                             int64_t run = 1) {
    auto promise = std::make_shared<std::promise<Status>>();
    std::future<Status> future = promise->get_future();
    auto* bytes = reinterpret_cast<std::byte*>(buffers_[rank].data());
    executor.local().Arrive({run, 0}, site, rank, {{bytes}, {bytes}},
                            [promise](const Status& status) { promise->set_value(status); });
    return future;
  }

  void ExpectSummed() const {
    const float ranks = static_cast<float>(buffers_.size());
    for (const auto& buffer : buffers_) {
      for (size_t i = 0; i < buffer.size(); ++i) {
        ASSERT_EQ(buffer[i], ranks * (ranks - 1) / 2 + ranks * static_cast<float>(i % 100)) << i;
      }
    }
  }

 private:
  std::vector<std::vector<float>> buffers_;
};

std::vector<Leaf> OneLeaf(size_t elements) { return {{DType::kF32, static_cast<int64_t>(elements * sizeof(float))}}; }

class AllReduceTest : public testing::TestWithParam<std::tuple<bool, uint32_t, size_t>> {};

TEST_P(AllReduceTest, SumsOnEveryRankWhoeverComesFirst) {
  const auto [late_joins, ranks, elements] = GetParam();
  Executor executor(2);
  const auto site =
      MakeSite(late_joins ? LastJoins(ranks) : DirectByHand(ranks, ranks), executor.stats(), OneLeaf(elements));
  Ranks buffers(ranks, elements);
  for (uint32_t first = 0; first < ranks; ++first) {
    buffers.Fill();
    std::vector<std::future<Status>> ends;
    for (uint32_t i = 0; i < ranks; ++i) ends.push_back(buffers.Arrive(executor, site, (first + i) % ranks, first));
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
    buffers.ExpectSummed();
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllReduceTest,
                         testing::Combine(testing::Bool(), testing::Values(2u, 3u, 8u),
                                          testing::Values(size_t{0}, size_t{1}, size_t{100}, size_t{5000},
                                                          size_t{300001})));

TEST(ExecutorTest, AGroupOfOneIsDoneAtOnce) {
  Executor executor(1);
  const auto site = MakeSite(ByHand(1, 1, {}), executor.stats(), OneLeaf(8));
  Ranks buffers(1, 8);
  EXPECT_TRUE(buffers.Arrive(executor, site, 0).get().ok());
  buffers.ExpectSummed();
}

TEST(ExecutorTest, TheOthersWorkWhileOneIsAway) {
  Executor executor(2);
  const auto site = MakeSite(LastJoins(4), executor.stats(), OneLeaf(400000));
  Ranks buffers(4, 400000);
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 3; ++rank) ends.push_back(buffers.Arrive(executor, site, rank));
  std::this_thread::sleep_for(milliseconds(100));
  ends.push_back(buffers.Arrive(executor, site, 3));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  buffers.ExpectSummed();
  // For each of 3 chunks, 3 reads and 1 write precede rank 3's arrival; 2 reads and 4 writes follow. 12 / 30 is 0.4.
  EXPECT_NE(executor.stats().Json().find("\"early_bytes_share\":0.4"), std::string::npos) << executor.stats().Json();
  EXPECT_NE(executor.stats().Json().find("\"late\":[0,0,0,1]"), std::string::npos) << executor.stats().Json();
}

// Runs the same call site repeatedly, as a loop in a compiled step does.
TEST(ExecutorTest, ACallRunsWhatTheLatenessOfTheOneBeforeSays) {
  Executor executor(2);
  auto site =
      std::make_shared<LocalSite>("psum", "data", "test", Kind::kAllReduce, Reduction::kSum, DirectByHand(3, 3));
  site->SelectFrom({LastJoins(3)}, {/*rank=*/2, /*seconds=*/0.01});
  ASSERT_TRUE(site->SetLeaves(OneLeaf(1000), executor.stats()).ok());
  Ranks buffers(3, 1000);
  const auto call = [&](int64_t run, milliseconds late) {
    buffers.Fill();
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(buffers.Arrive(executor, site, rank, run));
    std::this_thread::sleep_for(late);
    ends.push_back(buffers.Arrive(executor, site, 2, run));
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
    buffers.ExpectSummed();
    return site->stats().Last()->is_early;
  };
  // The first call runs the late rank's schedule, because no call has been measured. A busy machine may delay a rank by
  // 10 ms, so it may take several calls until a call is on time.
  EXPECT_FALSE(call(1, milliseconds(40)));
  EXPECT_FALSE(call(2, milliseconds(40)));
  EXPECT_FALSE(call(3, milliseconds(0)));
  for (int64_t run = 4; !call(run, milliseconds(0)); ++run) ASSERT_LT(run, 100);
  EXPECT_NE(executor.stats().Json().find("\"early_calls\":1,"), std::string::npos);
}

TEST(ExecutorTest, LoopsOfThreadsNeverMixTheirCalls) {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kElements = 3000;
  Executor executor(2);
  const auto site = MakeSite(LastJoins(kRanks), executor.stats(), OneLeaf(kElements));
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kElements, 1));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto* bytes = reinterpret_cast<std::byte*>(buffers[rank].data());
      for (int step = 0; step < 300; ++step) {
        std::promise<bool> done;
        executor.local().Arrive({1, 0}, site, rank, {{bytes}, {bytes}},
                                [&](const Status& status) { done.set_value(status.ok()); });
        ASSERT_TRUE(done.get_future().get());
        for (float& value : buffers[rank]) {
          ASSERT_EQ(value, kRanks);
          value = 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExecutorTest, ManyCallSitesAtOnceInAnyOrder) {
  constexpr uint32_t kRanks = 4, kSites = 32;
  Executor executor(2);
  std::vector<std::shared_ptr<LocalSite>> sites;
  std::vector<Ranks> buffers;
  for (uint32_t i = 0; i < kSites; ++i) {
    sites.push_back(MakeSite(DirectByHand(kRanks, kRanks), executor.stats(), OneLeaf(50 + i)));
    buffers.emplace_back(kRanks, 50 + i);
  }
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<std::future<Status>> ends;
      for (uint32_t i = 0; i < kSites; ++i) {
        const uint32_t site = (i * 5 + rank * 7) % kSites;
        ends.push_back(buffers[site].Arrive(executor, sites[site], rank));
      }
      for (auto& end : ends) EXPECT_TRUE(end.get().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ranks& ranks : buffers) ranks.ExpectSummed();
}

TEST(ExecutorTest, AMissingRankFailsTheOthersByNameAndTheNextCallWorks) {
  Executor executor(2);
  executor.SetDeadline(0.2);
  const auto site = MakeSite(LastJoins(4), executor.stats(), OneLeaf(100));
  Ranks buffers(4, 100);
  const auto start = Clock::now();
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0u, 1u, 3u}) ends.push_back(buffers.Arrive(executor, site, rank));
  for (auto& end : ends) {
    const Status status = end.get();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(status.message().rfind(
                  "DeadlineError: psum #1 over 'data' (400 B, plan test): rank 2 of 4 has not arrived after 0.", 0),
              0u)
        << status.message();
    EXPECT_NE(status.message().find("; 0,1,3 wait."), std::string::npos) << status.message();
  }
  EXPECT_LT(Clock::now() - start, milliseconds(1200));
  // The missing rank gets the same error when it arrives. The call is forgotten after that.
  EXPECT_EQ(buffers.Arrive(executor, site, 2).get().code(), Code::kDeadlineExceeded);
  buffers.Fill();
  ends.clear();
  for (uint32_t rank = 0; rank < 4; ++rank) ends.push_back(buffers.Arrive(executor, site, rank));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  buffers.ExpectSummed();
}

TEST(ExecutorTest, SeveralMissingRanksAreAllNamed) {
  Executor executor(1);
  executor.SetDeadline(0.05);
  const auto site = MakeSite(DirectByHand(3, 3), executor.stats(), OneLeaf(100));
  Ranks buffers(3, 100);
  const std::string message = buffers.Arrive(executor, site, 1).get().message();
  EXPECT_NE(message.find("ranks 0,2 of 3 have not arrived"), std::string::npos) << message;
  EXPECT_NE(message.find("; 1 waits."), std::string::npos) << message;
  executor.local().Forget(site.get());
}

TEST(ExecutorTest, OverdueCallsAreKeptForLateRanksButNotWithoutEnd) {
  constexpr int64_t kRuns = 1000;
  Executor executor(1);
  executor.SetDeadline(0.01);
  const auto site = MakeSite(DirectByHand(2, 2), executor.stats(), OneLeaf(100));
  Ranks buffers(2, 100);
  std::vector<std::future<Status>> ends;
  for (int64_t run = 0; run < kRuns; ++run) ends.push_back(buffers.Arrive(executor, site, 0, run));
  for (auto& end : ends) EXPECT_EQ(end.get().code(), Code::kDeadlineExceeded);
  EXPECT_GT(executor.local().open_calls(), 0u);
  EXPECT_LE(executor.local().open_calls(), 256u);
  EXPECT_EQ(buffers.Arrive(executor, site, 1, kRuns - 1).get().message().find("DeadlineError: psum #1000 "), 0u);
  executor.local().Forget(site.get());
  EXPECT_EQ(executor.local().open_calls(), 0u);
}

// If a call hung, it would end with the error of the default deadline, and the test would fail.
TEST(ExecutorTest, WithoutAThreadTheFirstRankHearsWhyAndTheNextCallWorks) {
  Executor executor(2);
  const auto site = MakeSite(DirectByHand(2, 2), executor.stats(), OneLeaf(100));
  Ranks buffers(2, 100);
  {
    const NoThreads none;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const std::string message = buffers.Arrive(executor, site, rank).get().message();
      EXPECT_EQ(message.find("psum over 'data': the system lets this process start no thread.\n  Cure: "), 0u)
          << message;
    }
    std::promise<Status> delayed;
    executor.Delay(milliseconds(1), [&](const Status& status) { delayed.set_value(status); });
    EXPECT_EQ(delayed.get_future().get().message().find("delay: the system"), 0u);
  }
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(buffers.Arrive(executor, site, rank));
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  buffers.ExpectSummed();
}

TEST(ExecutorTest, ACallbackThatLacksAThreadWaitsForOne) {
  Executor executor(2);
  const auto site = MakeSite(DirectByHand(3, 3), executor.stats(), OneLeaf(100));
  Ranks buffers(3, 100);
  std::vector<std::future<Status>> ends;
  {
    ends.push_back(buffers.Arrive(executor, site, 0));
    const NoThreads none;  // callbacks get no new threads
    ends.push_back(buffers.Arrive(executor, site, 1));
    ends.push_back(buffers.Arrive(executor, site, 2));
    EXPECT_TRUE(ends[2].get().ok());  // this callback runs on this thread, in Arrive
    EXPECT_EQ(ends[0].wait_for(milliseconds(50)), std::future_status::timeout);
  }
  EXPECT_TRUE(ends[0].get().ok());
  EXPECT_TRUE(ends[1].get().ok());
  buffers.ExpectSummed();
}

TEST(ExecutorTest, ACallbackThatNeverGetsAThreadFailsAtTheDeadline) {
  Executor executor(2);
  const auto site = MakeSite(DirectByHand(2, 2), executor.stats(), OneLeaf(100));
  Ranks buffers(2, 100);
  std::future<Status> end = buffers.Arrive(executor, site, 0);
  const NoThreads none;
  executor.SetDeadline(0.05);
  EXPECT_TRUE(buffers.Arrive(executor, site, 1).get().ok());
  EXPECT_EQ(end.get().message().find("psum over 'data': the system lets this process start no thread."), 0u);
}

TEST(ExecutorTest, ItsEndLosesNoCallbackThatStillLacksAThread) {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kElements = 1 << 22;  // so many that the worker is still adding when the executor is destroyed
  auto executor = std::make_unique<Executor>(1);
  const auto site = MakeSite(DirectByHand(kRanks, kRanks), executor->stats(), OneLeaf(kElements));
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kElements));
  auto held = std::make_shared<bool>();
  const std::weak_ptr<bool> watch = held;
  const auto arrive = [&](uint32_t rank) {
    auto* bytes = reinterpret_cast<std::byte*>(buffers[rank].data());
    executor->local().Arrive({1, 0}, site, rank, {{bytes}, {bytes}}, [held](const Status&) {});
  };
  arrive(0);
  const NoThreads none;
  for (uint32_t rank = 1; rank < kRanks; ++rank) arrive(rank);
  held.reset();
  executor.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(ExecutorTest, DenormalsAreFlushedWhicheverThreadSums) {
  for (const size_t elements : {size_t{100}, size_t{300000}}) {  // this thread adds 100 elements; workers add 300000
    Executor executor(2);
    const auto site = MakeSite(DirectByHand(2, 2), executor.stats(), OneLeaf(elements));
    std::vector<std::vector<float>> buffers(2, std::vector<float>(elements, 0x1p-130f));
    std::vector<std::future<float>> made;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto promise = std::make_shared<std::promise<float>>();
      made.push_back(promise->get_future());
      auto* bytes = reinterpret_cast<std::byte*>(buffers[rank].data());
      executor.local().Arrive({1, 0}, site, rank, {{bytes}, {bytes}}, [promise](const Status&) {
        volatile float smallest = 0x1p-126f;
        promise->set_value(smallest * 0.5f);
      });
    }
    EXPECT_EQ(made[0].get(), 0);  // this callback runs on a thread of the executor
    made[1].wait();
    for (const auto& buffer : buffers) {
      for (const float value : buffer) ASSERT_EQ(value, 0);
    }
  }
}

TEST(ExecutorTest, ReduceScatterAndAllGatherKeepToTheirSlices) {
  constexpr uint32_t kRanks = 3;
  constexpr size_t kSlice = 70;
  Executor executor(2);
  std::vector<PlainOp> scatter, gather;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    scatter.push_back({rank, rank, Everybody(kRanks), {rank}, {}});
    gather.push_back({0, rank, {rank}, Everybody(kRanks), {}});
  }
  const auto scatter_site =
      MakeSite(ByHand(kRanks, kRanks, scatter), executor.stats(), OneLeaf(kSlice), Kind::kReduceScatter);
  const auto gather_site =
      MakeSite(ByHand(kRanks, kRanks, gather), executor.stats(), OneLeaf(kSlice), Kind::kAllGather);
  std::vector<std::vector<float>> operands(kRanks), slices(kRanks), results(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kRanks * kSlice; ++i) operands[rank].push_back(static_cast<float>(i + rank));
    slices[rank].resize(kSlice);
    results[rank].resize(kRanks * kSlice);
  }
  const auto arrive_all = [&](const std::shared_ptr<LocalSite>& site, auto& from, auto& to) {
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      auto promise = std::make_shared<std::promise<Status>>();
      ends.push_back(promise->get_future());
      executor.local().Arrive(
          {1, 0}, site, rank,
          {{reinterpret_cast<const std::byte*>(from[rank].data())}, {reinterpret_cast<std::byte*>(to[rank].data())}},
          [promise](const Status& status) { promise->set_value(status); });
    }
    for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  };
  arrive_all(scatter_site, operands, slices);
  arrive_all(gather_site, slices, results);
  for (const auto& result : results) {
    for (size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], static_cast<float>(3 * i + 3));
  }
}

TEST(ExecutorTest, SeveralLeavesOfSeveralTypesAreOneCall) {
  Executor executor(2);
  const auto site = MakeSite(LastJoins(3), executor.stats(), {{DType::kF64, 24}, {DType::kS32, 0}, {DType::kS8, 5}});
  std::vector<std::vector<double>> doubles(3, {1, 2, 3});
  std::vector<std::vector<int8_t>> bytes(3, {1, 2, 3, 4, 100});
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    auto promise = std::make_shared<std::promise<Status>>();
    ends.push_back(promise->get_future());
    auto* first = reinterpret_cast<std::byte*>(doubles[rank].data());
    auto* last = reinterpret_cast<std::byte*>(bytes[rank].data());
    executor.local().Arrive({1, 0}, site, rank, {{first, nullptr, last}, {first, nullptr, last}},
                            [promise](const Status& status) { promise->set_value(status); });
  }
  for (auto& end : ends) EXPECT_TRUE(end.get().ok());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(doubles[rank], (std::vector<double>{3, 6, 9}));
    EXPECT_EQ(bytes[rank], (std::vector<int8_t>{3, 6, 9, 12, 44}));  // 3 * 100 wraps to 44
  }
}

}  // namespace
}  // namespace jaxcomm

#include "cc/executor/messages/message_executor.h"

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/program/testing/halving_doubling.h"
#include "cc/transport/local/local.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/router.h"
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

// Processes with the same number of ranks each. The device of rank r is 10 · r. With two rails, all arrivals go over
// the first rail. Most messages go over the second rail, where they may overtake arrivals.
class Job {
 public:
  Job(uint32_t processes, uint32_t ranks_of_each, uint32_t seed = 1, bool on_two_rails = false)
      : each_(ranks_of_each), on_two_rails_(on_two_rails), network_(processes, seed), second_(processes, seed + 1) {
    for (uint32_t process = 0; process < processes; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      Transport::Events* const events = &executors_[process]->messages();
      if (!on_two_rails) network_.Connect(process, events);
      executors_[process]->messages().Connect(on_two_rails ? MakeRails(process, events) : &network_.transport(process));
    }
  }
  ~Job() {
    network_.Stop();
    second_.Stop();
  }

  uint32_t ranks() const { return static_cast<uint32_t>(executors_.size()) * each_; }
  uint32_t ProcessOf(uint32_t rank) const { return rank / each_; }
  Executor& executor(uint32_t process) { return *executors_[process]; }
  void Kill(uint32_t process) {
    KillRail(process, 0);
    if (on_two_rails_) KillRail(process, 1);
  }
  void KillRail(uint32_t process, uint32_t rail) { (rail == 0 ? network_ : second_).Kill(process); }

  // A call site: by process, a MessageSite whose leaves are set.
  using Site = std::vector<std::shared_ptr<MessageSite>>;
  Site MakeSite(const std::string& list, const std::vector<Leaf>& leaves, Kind kind = Kind::kAllReduce,
                Reduction reduction = Reduction::kSum, uint32_t number = 0) {
    MessageGroup group;
    for (uint32_t rank = 0; rank < ranks(); ++rank) group.ranks.push_back({ProcessOf(rank), 10 * rank});
    return MakeGroups({group}, list, leaves, kind, reduction, number);
  }
  Site MakeGroups(std::vector<MessageGroup> groups, const std::string& list, const std::vector<Leaf>& leaves, Kind kind,
                  Reduction reduction, uint32_t number) {
    Site site;
    for (uint32_t process = 0; process < executors_.size(); ++process) {
      for (MessageGroup& group : groups) {
        group.list = list + "/" + std::to_string(group.ranks.size());
        group.lists.clear();
        AddHalvingDoubling(registry_, static_cast<uint32_t>(group.ranks.size()));
        for (uint32_t i = 0; i < group.ranks.size(); ++i) group.lists.push_back(registry_.Find(group.list, i));
      }
      auto made =
          MessageSite::Make({"psum", "data", "none", "train.py:" + std::to_string(50 + number)}, {kind, reduction},
                            /*module=*/77, number, groups, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      site.push_back(made.value());
      const Status status = site.back()->SetLeaves(leaves, executors_[process]->stats());
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return site;
  }

  // XLA's number of the run is different in every process, so this function adds 1000 · process to `run`.
  std::future<Status> Arrive(const Site& site, uint32_t rank, const std::vector<Bytes>& operands,
                             std::vector<Bytes>& results, int64_t run = 1) {
    Buffers buffers;
    for (const Bytes& operand : operands) buffers.operands.push_back(operand.data());
    for (Bytes& result : results) buffers.results.push_back(result.data());
    const auto promise = std::make_shared<std::promise<Status>>();
    const uint32_t process = ProcessOf(rank);
    executors_[process]->messages().Arrive(site[process], 1000 * process + run, rank, std::move(buffers),
                                           [promise](const Status& status) { promise->set_value(status); });
    return promise->get_future();
  }
  std::future<Status> Arrive(const Site& site, uint32_t rank, std::vector<Bytes>& buffers, int64_t run = 1) {
    return Arrive(site, rank, buffers, buffers, run);
  }

 private:
  Transport* MakeRails(uint32_t process, Transport::Events* events) {
    rails_.push_back(std::make_unique<Rails>(network_.processes(), 2, events));
    Rails& rails = *rails_.back();
    network_.Connect(process, rails.events(0));
    second_.Connect(process, rails.events(1));
    rails.Connect({&network_.transport(process), &second_.transport(process)});
    const std::vector<RailTable::Range> shares = {{0, {1024, 0}}, {1, {256, 768}}};
    std::vector<uint32_t> routes(network_.processes(), 1);
    routes[process] = 0;  // no rail leads from a process to itself
    for (uint32_t other = 0; other < routes.size(); ++other) {
      if (other == process) continue;
      EXPECT_TRUE(rails.AddProcess(other, shares, {0, 1}).ok());
    }
    locals_.push_back(std::make_unique<LocalTransport>());
    routers_.push_back(
        std::make_unique<Router>(std::vector<Transport*>{locals_.back().get(), &rails}, std::move(routes)));
    return routers_.back().get();
  }

  const uint32_t each_;
  const bool on_two_rails_;
  SimulatedNetwork network_, second_;
  std::vector<std::unique_ptr<Rails>> rails_;
  std::vector<std::unique_ptr<LocalTransport>> locals_;
  std::vector<std::unique_ptr<Router>> routers_;
  std::vector<std::unique_ptr<Executor>> executors_;
  MessageRegistry registry_;
};

// Returns small whole numbers, so that sums in any order are exact.
std::vector<Bytes> Values(const std::vector<Leaf>& leaves, uint32_t rank, uint32_t slices = 1) {
  std::vector<Bytes> values;
  for (const Leaf& leaf : leaves) {
    Bytes bytes(static_cast<size_t>(leaf.bytes) * slices);
    const size_t width = ByteWidth(leaf.dtype);
    for (size_t i = 0; i * width < bytes.size(); ++i) {
      const auto value = static_cast<int32_t>((i * 7 + rank * 3) % 11);
      if (leaf.dtype == DType::kF32) {
        const auto real = static_cast<float>(value);
        std::memcpy(&bytes[i * width], &real, width);
      } else if (leaf.dtype == DType::kBF16) {
        const auto real = static_cast<float>(value);
        std::memcpy(&bytes[i * width], reinterpret_cast<const char*>(&real) + 2, width);
      } else {
        const int64_t whole = value;
        std::memcpy(&bytes[i * width], &whole, width);
      }
    }
    values.push_back(std::move(bytes));
  }
  return values;
}

std::vector<Bytes> Sum(const std::vector<Leaf>& leaves, const std::vector<std::vector<Bytes>>& values) {
  std::vector<Bytes> sums = values[0];
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    std::vector<const std::byte*> sources;
    for (const auto& rank : values) sources.push_back(rank[leaf].data());
    std::byte* to = sums[leaf].data();
    plain::Find(leaves[leaf].dtype, Reduction::kSum)(sources.data(), sources.size(), &to, 1, 1, sums[leaf].size());
  }
  return sums;
}

void ExpectOk(std::vector<std::future<Status>>& ends) {
  for (auto& end : ends) {
    const Status status = end.get();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ends.clear();
}

const std::vector<std::vector<Leaf>> kLayouts = {
    {{DType::kF32, 4}},
    {{DType::kF32, 4 * 1009}},
    {{DType::kBF16, 2 * 333}, {DType::kS32, 4 * 7}, {DType::kS8, 1025}, {DType::kF32, 4 * 100}},
    {{DType::kF32, 4 * 70001}, {DType::kBF16, 2 * 5}, {DType::kS64, 8 * 40003}},
};

class ListTest : public testing::TestWithParam<std::tuple<const char*, uint32_t, uint32_t>> {};

TEST_P(ListTest, AllRanksEndWithTheSum) {
  const auto [list, processes, each] = GetParam();
  for (uint32_t seed = 0; seed < kLayouts.size(); ++seed) {
    Job job(processes, each, seed, /*on_two_rails=*/seed % 2 == 1);
    const std::vector<Leaf>& leaves = kLayouts[seed];
    const auto site = job.MakeSite(list, leaves);
    for (int64_t run = 1; run <= 3; ++run) {
      std::vector<std::vector<Bytes>> values;
      for (uint32_t rank = 0; rank < job.ranks(); ++rank) values.push_back(Values(leaves, rank));
      const std::vector<Bytes> sum = Sum(leaves, values);
      std::vector<std::future<Status>> ends;
      for (uint32_t i = 0; i < job.ranks(); ++i) {
        const uint32_t rank = (i + static_cast<uint32_t>(run)) % job.ranks();
        ends.push_back(job.Arrive(site, rank, values[rank], run));
      }
      ExpectOk(ends);
      for (uint32_t rank = 0; rank < job.ranks(); ++rank) EXPECT_EQ(values[rank], sum) << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ListTest,
                         testing::Combine(testing::Values("all_reduce/flat", "all_reduce/direct", "all_reduce/ring",
                                                          "all_reduce/halving_doubling"),
                                          testing::Values(2u, 4u), testing::Values(1u, 2u)));

TEST(MessageExecutorTest, ManyRanksOfEveryListAgree) {
  const std::vector<Leaf>& leaves = kLayouts[2];
  for (const char* list : {"all_reduce/flat", "all_reduce/direct", "all_reduce/ring", "all_reduce/halving_doubling"}) {
    for (const uint32_t ranks : {3u, 7u, 16u}) {
      if (std::string(list) == "all_reduce/halving_doubling" && ranks != 16) continue;
      Job job(ranks, 1, ranks);
      const auto site = job.MakeSite(list, leaves);
      std::vector<std::vector<Bytes>> values;
      for (uint32_t rank = 0; rank < ranks; ++rank) values.push_back(Values(leaves, rank));
      const std::vector<Bytes> sum = Sum(leaves, values);
      std::vector<std::future<Status>> ends;
      for (uint32_t rank = 0; rank < ranks; ++rank) ends.push_back(job.Arrive(site, rank, values[rank]));
      ExpectOk(ends);
      for (uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(values[rank], sum) << list << " " << rank;
    }
  }
}

TEST(MessageExecutorTest, ReduceScatterAndAllGatherKeepToTheirSlices) {
  for (const uint32_t each : {1u, 2u}) {
    Job job(2, each);
    const uint32_t ranks = job.ranks();
    const std::vector<Leaf> leaves = {{DType::kF32, 4 * 70001}, {DType::kS8, 77}};
    const auto scatter = job.MakeSite("reduce_scatter/direct", leaves, Kind::kReduceScatter, Reduction::kSum, 0);
    const auto gather = job.MakeSite("all_gather/direct", leaves, Kind::kAllGather, Reduction::kSum, 1);
    std::vector<std::vector<Bytes>> operands, slices, wholes;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      operands.push_back(Values(leaves, rank, ranks));
      slices.push_back(Values(leaves, rank));
      wholes.push_back(Values(leaves, rank, ranks));
    }
    const std::vector<Bytes> sum = Sum(leaves, operands);
    const auto before = operands;
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      ends.push_back(job.Arrive(scatter, rank, operands[rank], slices[rank]));
    ExpectOk(ends);
    for (uint32_t rank = 0; rank < ranks; ++rank) ends.push_back(job.Arrive(gather, rank, slices[rank], wholes[rank]));
    ExpectOk(ends);
    EXPECT_EQ(operands, before);
    for (uint32_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(wholes[rank], sum) << rank;
  }
}

// Each group has a rank in each process. The groups' sums must not mix.
TEST(MessageExecutorTest, GroupsOfOneSiteSumForThemselves) {
  Job job(2, 2);
  std::vector<MessageGroup> groups(2);
  groups[0].ranks = {{0, 0}, {1, 20}};
  groups[1].ranks = {{0, 10}, {1, 30}};
  const std::vector<Leaf> leaves = {{DType::kF32, 4000}};
  const auto site = job.MakeGroups(groups, "all_reduce/flat", leaves, Kind::kAllReduce, Reduction::kSum, 0);
  // The call's ranks 0 and 2 are in process 0, ranks 1 and 3 in process 1.
  std::vector<std::vector<Bytes>> values;
  for (uint32_t rank = 0; rank < 4; ++rank) values.push_back(Values(leaves, rank));
  const auto first = Sum(leaves, {values[0], values[1]}), second = Sum(leaves, {values[2], values[3]});
  std::vector<std::future<Status>> ends;
  for (const uint32_t rank : {0u, 2u, 1u, 3u}) {
    const auto promise = std::make_shared<std::promise<Status>>();
    ends.push_back(promise->get_future());
    job.executor(rank % 2).messages().Arrive(site[rank % 2], 1, rank,
                                             {{values[rank][0].data()}, {values[rank][0].data()}},
                                             [promise](const Status& status) { promise->set_value(status); });
  }
  ExpectOk(ends);
  EXPECT_EQ(values[0], first);
  EXPECT_EQ(values[1], first);
  EXPECT_EQ(values[2], second);
  EXPECT_EQ(values[3], second);
}

class FailureTest : public testing::Test {
 protected:
  FailureTest() : job_(3, 1), leaves_({{DType::kF32, 4 * 100000}}) {
    site_ = job_.MakeSite("all_reduce/direct", leaves_);
    other_ = job_.MakeSite("all_reduce/flat", {{DType::kF32, 4}}, Kind::kAllReduce, Reduction::kMax, 1);
    for (uint32_t rank = 0; rank < 3; ++rank) values_.push_back(Values(leaves_, rank));
  }

  void SetDeadline(double seconds) {
    for (uint32_t process = 0; process < 3; ++process) job_.executor(process).SetDeadline(seconds);
  }

  void ExpectNextCallWorks(int64_t run) {
    SetDeadline(60);
    for (uint32_t rank = 0; rank < 3; ++rank) values_[rank] = Values(leaves_, rank);
    const std::vector<Bytes> sum = Sum(leaves_, values_);
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < 3; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank], run));
    ExpectOk(ends);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(values_[rank], sum) << rank;
  }

  Job job_;
  std::vector<Leaf> leaves_;
  Job::Site site_, other_;
  std::vector<std::vector<Bytes>> values_;
};

TEST_F(FailureTest, AMissingRankIsNamedAndWhereItIsAndTheNextCallWorks) {
  SetDeadline(0.5);
  std::vector<Bytes> one = Values({{DType::kF32, 4}}, 0);
  std::future<Status> elsewhere = job_.Arrive(other_, 2, one);
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank]));
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_EQ(message.find("DeadlineError: psum #"), 0u) << message;
    EXPECT_NE(message.find("rank 2 of 3 has not arrived after "), std::string::npos) << message;
    EXPECT_NE(message.find("; 0,1 wait."), std::string::npos) << message;
    EXPECT_NE(
        message.find("Rank 2 is process 2, and is in psum over 'data', f32[1] (4 B), plan none, at train.py:51, for "),
        std::string::npos)
        << message;
  }
  // Rank 2 arrives now. It gets the same error, or the error of its earlier call.
  EXPECT_EQ(elsewhere.get().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(job_.Arrive(site_, 2, values_[2]).get().code(), Code::kDeadlineExceeded);
  ExpectNextCallWorks(2);
}

TEST_F(FailureTest, AnotherCallByTheSameNameNamesBothSides) {
  const auto different = job_.MakeSite("all_reduce/direct", {{DType::kF32, 4 * 99999}});
  std::vector<std::future<Status>> ends;
  ends.push_back(job_.Arrive(site_, 0, values_[0]));
  ends.push_back(job_.Arrive(different, 1, values_[1]));
  ends.push_back(job_.Arrive(site_, 2, values_[2]));
  for (auto& end : ends) {
    const std::string message = end.get().message();
    EXPECT_EQ(message.find("MismatchError: psum #1 over 'data' ("), 0u) << message;
    EXPECT_NE(message.find("f32[99999]"), std::string::npos) << message;
    EXPECT_NE(message.find("f32[100000]"), std::string::npos) << message;
  }
  ExpectNextCallWorks(2);
}

TEST_F(FailureTest, AProcessThatEndsFailsItsCallsNowAndLater) {
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank]));
  job_.Kill(2);
  for (int64_t run = 2; run < 4; ++run) {
    for (auto& end : ends) {
      const std::string message = end.get().message();
      EXPECT_NE(message.find("rank 2 is gone: process 2 ended"), std::string::npos) << message;
    }
    ends.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank], run));
  }
  for (auto& end : ends) EXPECT_FALSE(end.get().ok());
}

// Process 2 missed one launch of the module, so it counts one launch less than the other processes.
TEST_F(FailureTest, ALaunchThatOneProcessMissedIsMadeUpForWhenAllLaunchAgain) {
  SetDeadline(0.3);
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank], /*run=*/1));
  for (auto& end : ends) EXPECT_FALSE(end.get().ok());
  ends.clear();
  SetDeadline(60);
  for (uint32_t rank = 0; rank < 3; ++rank) values_[rank] = Values(leaves_, rank);
  const std::vector<Bytes> sum = Sum(leaves_, values_);
  for (uint32_t rank = 0; rank < 2; ++rank) ends.push_back(job_.Arrive(site_, rank, values_[rank], /*run=*/2));
  // Process 2's calls of the launch that the other processes have given up fail at once. This holds even for a call
  // that the other processes never joined.
  std::vector<Bytes> one = Values({{DType::kF32, 4}}, 0), same = values_[2];
  EXPECT_NE(job_.Arrive(site_, 2, same, /*run=*/1).get().message().find("after 0."), std::string::npos);
  EXPECT_NE(job_.Arrive(other_, 2, one, /*run=*/1).get().message().find("after 0."), std::string::npos);
  ends.push_back(job_.Arrive(site_, 2, values_[2], /*run=*/2));
  ExpectOk(ends);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(values_[rank], sum);
  ExpectNextCallWorks(3);
}

TEST_F(FailureTest, CallsInAnotherOrderOnEveryProcessDoNotMix) {
  std::vector<std::vector<Bytes>> ones;
  for (uint32_t rank = 0; rank < 3; ++rank) ones.push_back(Values({{DType::kF32, 4}}, rank));
  const std::vector<Bytes> sum = Sum(leaves_, values_);
  std::vector<std::future<Status>> ends;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    if (rank == 1) ends.push_back(job_.Arrive(other_, rank, ones[rank]));
    ends.push_back(job_.Arrive(site_, rank, values_[rank]));
    if (rank != 1) ends.push_back(job_.Arrive(other_, rank, ones[rank]));
  }
  ExpectOk(ends);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(values_[rank], sum);
    EXPECT_EQ(ones[rank], Values({{DType::kF32, 4}}, 2));  // the maximum of the ranks' values
  }
}

TEST_F(FailureTest, StatisticsAreThoseOfCallsWithinAProcess) {
  ExpectNextCallWorks(1);
  const std::string json = job_.executor(0).stats().Json();
  EXPECT_NE(json.find("\"ranks\":3,\"bytes\":400000,\"calls\":1,\"failed\":0"), std::string::npos) << json;
}

// When a call has failed, its ranks own their memory again and free it. Sanitizers find any later access.
TEST(MessageExecutorTest, ProcessesThatEndAtAnyMomentLeaveTheRanksTheirMemory) {
  const std::vector<Leaf> leaves = {{DType::kF32, 4 * 300000}};
  for (uint32_t seed = 0; seed < 10; ++seed) {
    Job job(4, 1, seed, /*on_two_rails=*/seed % 4 > 1);
    const auto site = job.MakeSite(seed % 2 == 0 ? "all_reduce/ring" : "all_reduce/direct", leaves);
    std::vector<std::promise<void>> done(4);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      auto values = std::make_unique<std::vector<Bytes>>(Values(leaves, rank));
      std::byte* const bytes = (*values)[0].data();
      const auto owner = std::make_shared<std::unique_ptr<std::vector<Bytes>>>(std::move(values));
      job.executor(rank).messages().Arrive(site[rank], 1, rank, {{bytes}, {bytes}},
                                           [owner, &done, rank](const Status&) {
                                             owner->reset();
                                             done[rank].set_value();
                                           });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200 * seed));  // a different moment for each seed
    job.Kill(seed % 4);
    for (auto& end : done) end.get_future().wait();
  }
}

TEST(MessageExecutorTest, CallsGoOnOverTheOneOfTwoRailsThatIsLeft) {
  const std::vector<Leaf>& leaves = kLayouts[3];
  for (uint32_t seed = 0; seed < 8; ++seed) {
    Job job(4, 1, seed, /*on_two_rails=*/true);
    const auto site = job.MakeSite(seed % 2 == 0 ? "all_reduce/ring" : "all_reduce/direct", leaves);
    for (int64_t run = 1; run <= 2; ++run) {
      std::vector<std::vector<Bytes>> values;
      for (uint32_t rank = 0; rank < 4; ++rank) values.push_back(Values(leaves, rank));
      const std::vector<Bytes> sum = Sum(leaves, values);
      std::vector<std::future<Status>> ends;
      for (uint32_t rank = 0; rank < 4; ++rank) ends.push_back(job.Arrive(site, rank, values[rank], run));
      std::this_thread::sleep_for(std::chrono::microseconds(200 * seed));  // a different moment for each seed
      if (run == 1) job.KillRail(/*process=*/seed % 4, /*rail=*/seed / 4);
      ExpectOk(ends);
      for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(values[rank], sum) << seed << " " << rank;
    }
  }
}

}  // namespace
}  // namespace jaxcomm

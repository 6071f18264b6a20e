#include "cc/executor/across.h"

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
#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

// Processes with the same number of ranks each; a rank's device is its number times ten.
class Job {
 public:
  Job(uint32_t processes, uint32_t ranks_of_each, uint32_t seed = 1) : each_(ranks_of_each), network_(processes, seed) {
    for (uint32_t process = 0; process < processes; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      network_.Connect(process, &executors_[process]->events());
      executors_[process]->Connect(&network_.transport(process));
    }
  }
  ~Job() { network_.Stop(); }

  uint32_t ranks() const { return static_cast<uint32_t>(executors_.size()) * each_; }
  uint32_t ProcessOf(uint32_t rank) const { return rank / each_; }
  Executor& executor(uint32_t process) { return *executors_[process]; }
  SimulatedNetwork& network() { return network_; }

  // A call site by process, whose leaves are set.
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
        for (uint32_t i = 0; i < group.ranks.size(); ++i) group.lists.push_back(registry_.Find(group.list, i));
      }
      auto made = MessageSite::Make({"psum", "data", "none", "train.py:" + std::to_string(50 + number)}, kind, reduction,
                                    /*module=*/77, number, groups, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      site.push_back(made.value());
      const Status status = site.back()->SetLeaves(leaves, executors_[process]->stats());
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return site;
  }

  // `run` is another number in every process.
  std::future<Status> Arrive(const Site& site, uint32_t rank, const std::vector<Bytes>& operands,
                             std::vector<Bytes>& results, int64_t run = 1) {
    Buffers buffers;
    for (const Bytes& operand : operands) buffers.operands.push_back(operand.data());
    for (Bytes& result : results) buffers.results.push_back(result.data());
    const auto promise = std::make_shared<std::promise<Status>>();
    const uint32_t process = ProcessOf(rank);
    executors_[process]->ArriveAcross(site[process], 1000 * process + run, rank, std::move(buffers),
                                      [promise](const Status& status) { promise->set_value(status); });
    return promise->get_future();
  }
  std::future<Status> Arrive(const Site& site, uint32_t rank, std::vector<Bytes>& buffers, int64_t run = 1) {
    return Arrive(site, rank, buffers, buffers, run);
  }

 private:
  const uint32_t each_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Executor>> executors_;
  MessageRegistry registry_;
};

// Small whole numbers, so that sums in any order are exact.
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
    Job job(processes, each, seed);
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

}  // namespace
}  // namespace jaxcomm

// Small sums and gathers, of which arrivals carry all that the ranks have for each other.
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/message_call.h"
#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;

const CallId kCall{77, 3, 0, 0};

// One call as two processes see it, of two ranks each, whose notices the test carries. Rank r brings bytes of r + 1.
class TwoProcesses {
 public:
  TwoProcesses(const std::string& list, Kind kind, std::vector<int64_t> leaves) : leaves_(std::move(leaves)) {
    MessageGroup group{{}, list + "/4", {}};
    for (uint32_t rank = 0; rank < 4; ++rank) {
      group.ranks.push_back({rank / 2, rank});
      group.lists.push_back(registry_.Find(group.list, rank));
      for (const int64_t bytes : leaves_) {
        const auto size = static_cast<size_t>(bytes);
        operands_[rank].emplace_back(size, std::byte(rank + 1));
        results_[rank].emplace_back(kind == Kind::kAllGather ? 4 * size : size);
      }
    }
    for (uint32_t process = 0; process < 2; ++process) {
      auto made = MessageSite::Make({"psum", "data", "none", "train.py:57"}, kind, Reduction::kSum, kCall.communicator,
                                    kCall.site, {group}, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      made.value()->SeparateResults();
      std::vector<Leaf> each;
      for (const int64_t bytes : leaves_) each.push_back({DType::kU8, bytes});
      EXPECT_TRUE(made.value()->SetLeaves(each, stats_).ok());
      calls_.push_back(std::make_unique<MessageCall>(made.value(), kCall, 1, 2 * process, Clock::now()));
    }
  }

  MessageCall& call(uint32_t process) { return *calls_[process]; }
  const std::vector<Bytes>& results(uint32_t rank) const { return results_[rank]; }
  const std::vector<uint32_t>& ended() const { return ended_; }
  int64_t carried_bytes() const { return calls_[0]->site().carried_bytes(); }

  // The notice that the rank's arrival is to the other process.
  Arrival Arrive(uint32_t rank) {
    Buffers buffers;
    for (const Bytes& operand : operands_[rank]) buffers.operands.push_back(operand.data());
    for (Bytes& result : results_[rank]) buffers.results.push_back(result.data());
    const auto end = [this, rank](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      ended_.push_back(rank);
    };
    MessageCall& it = call(rank / 2);
    MessageSteps steps = it.Arrive(rank, std::move(buffers), end, Clock::now(), {});
    EXPECT_EQ(steps.arrived, rank);
    const Arrival arrival{kCall, rank, rank, it.site().fingerprint(), it.site().text(), {}, false, steps.carried};
    Run(it, std::move(steps));
    return std::get<Arrival>(*DecodeNotice(Encode(arrival)));
  }
  void Deliver(const Arrival& arrival) {
    MessageCall& to = call(1 - arrival.rank / 2);
    Run(to, to.PeerArrived(arrival, arrival.rank / 2, Clock::now()));
  }

 private:
  // Nothing is to be sent or posted.
  static void Run(MessageCall& call, MessageSteps steps) {
    std::deque<MessageSteps> left;
    left.push_back(std::move(steps));
    for (; !left.empty(); left.pop_front()) {
      for (const MessageStep& step : left.front().tasks) {
        ASSERT_EQ(call.task(step).kind, MessageTask::Kind::kAdd);
        left.push_back(call.Add(step));
      }
      for (Completion& completion : left.front().completions) completion.done(completion.status);
    }
  }

  const std::vector<int64_t> leaves_;
  MessageRegistry registry_;
  Stats stats_;
  std::vector<Bytes> operands_[4], results_[4];
  std::vector<uint32_t> ended_;
  std::vector<std::unique_ptr<MessageCall>> calls_;
};

TEST(CarriedMessages, ASmallSumEndsWithTheLastArrivalInAnyOrder) {
  for (const bool late : {false, true}) {
    TwoProcesses job("all_reduce/flat", Kind::kAllReduce, {5, 1000, 3});
    EXPECT_GE(job.carried_bytes(), 1008);
    std::vector<Arrival> arrivals;
    for (const uint32_t rank : {0u, 1u}) arrivals.push_back(job.Arrive(rank));
    if (!late) arrivals.push_back(job.Arrive(3));
    for (const Arrival& arrival : arrivals) job.Deliver(arrival);
    EXPECT_TRUE(job.ended().empty());
    if (late) job.Deliver(job.Arrive(3));
    job.Deliver(job.Arrive(2));
    EXPECT_EQ(job.ended().size(), 4u);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      for (const Bytes& result : job.results(rank)) EXPECT_EQ(result, Bytes(result.size(), std::byte{10}));
    }
  }
}

TEST(CarriedMessages, ASmallGatherPutsEverySliceInItsPlace) {
  TwoProcesses job("all_gather/direct", Kind::kAllGather, {7, 100});
  for (uint32_t rank = 0; rank < 4; ++rank) job.Deliver(job.Arrive(rank));
  EXPECT_EQ(job.ended().size(), 4u);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (const Bytes& result : job.results(rank)) {
      for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], std::byte(i / (result.size() / 4) + 1));
    }
  }
}

TEST(CarriedMessages, LargerCallsAndOtherListsSendMessages) {
  const int64_t most = Arrival::kMaxBytes;
  EXPECT_EQ(TwoProcesses("all_reduce/flat", Kind::kAllReduce, {most}).carried_bytes(), most);
  EXPECT_EQ(TwoProcesses("all_reduce/flat", Kind::kAllReduce, {most + 1}).carried_bytes(), 0);
  EXPECT_EQ(TwoProcesses("all_reduce/direct", Kind::kAllReduce, {64}).carried_bytes(), 0);
  EXPECT_EQ(TwoProcesses("reduce_scatter/direct", Kind::kReduceScatter, {64}).carried_bytes(), 0);
}

TEST(CarriedMessages, ARankThatArrivesTwiceCountsOnce) {
  TwoProcesses job("all_reduce/flat", Kind::kAllReduce, {8});
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Arrival arrival = job.Arrive(rank);
    for (int times = 0; times < 2; ++times) job.Deliver(arrival);
  }
  EXPECT_EQ(job.ended().size(), 4u);
}

TEST(CarriedMessages, AnArrivalThatCarriesTooLittleFailsTheCall) {
  for (const std::string& bytes : {std::string(), std::string(7, 'x'), std::string(9, 'x')}) {
    TwoProcesses job("all_reduce/flat", Kind::kAllReduce, {8});
    job.Arrive(0);
    Arrival arrival = job.Arrive(2);
    arrival.bytes = std::make_shared<const std::string>(bytes);
    EXPECT_TRUE(job.call(0).PeerArrived(arrival, /*process=*/1, Clock::now()).failed);
    const std::string why = job.call(0).failure().message();
    EXPECT_NE(why.find("rank 2 (process 1) sent " + std::to_string(bytes.size()) + " bytes with its arrival"),
              std::string::npos)
        << why;
  }
}

}  // namespace
}  // namespace jaxcomm

#include "cc/gpu/nccl/runner.h"

#include <memory>
#include <string>
#include <vector>

#include "cc/gpu/nccl/simulation/simulation.h"
#include "cc/program/messages.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Words = std::vector<uint32_t>;

// Two ranks exchange their one chunk and both add rank 0's and then rank 1's.
Words Exchange(uint32_t rank) {
  const uint32_t other = 1 - rank;
  return {Messages::kMagic, Messages::kVersion, 2, rank, 1, 1, 1, 1, 1, 1, other, 0, other, 0, 1, 0, 2, rank, other};
}

std::shared_ptr<const Messages> Decoded(const Words& words) {
  Result<Messages> found = Messages::Decode(words.data(), words.size());
  EXPECT_TRUE(found.ok()) << found.status().message();
  return std::make_shared<const Messages>(found.value());
}

class TwoRanks : public testing::Test {
 protected:
  TwoRanks() : simulation_(2, 1), values_{{1, 2, 3}, {10, 20, 30}} {}

  Status Queue(uint32_t rank, const Words& words, int64_t bytes = 12) {
    runners_.emplace_back(Decoded(words), Layout({{DType::kF32, bytes}}), Reduction::kSum);
    scratch_.emplace_back(runners_.back().scratch_bytes());
    return runners_.back().Run({reinterpret_cast<std::byte*>(values_[rank].data())}, scratch_.back().data(),
                               simulation_.channel(rank));
  }

  Simulation simulation_;
  std::vector<std::vector<float>> values_;
  std::vector<Runner> runners_;
  std::vector<std::vector<std::byte>> scratch_;
};

TEST_F(TwoRanks, BothEndWithTheSum) {
  ASSERT_TRUE(Queue(0, Exchange(0)).ok());
  ASSERT_TRUE(Queue(1, Exchange(1)).ok());
  const Status status = simulation_.Play();
  ASSERT_TRUE(status.ok()) << status.message();
  for (const auto& values : values_) EXPECT_EQ(values, (std::vector<float>{11, 22, 33}));
}

TEST_F(TwoRanks, AMissingPeerIsADeadlock) {
  ASSERT_TRUE(Queue(0, Exchange(0)).ok());
  EXPECT_EQ(simulation_.Play().message(), "deadlock: rank 0 waits to send to rank 1");
}

TEST_F(TwoRanks, OtherSizesAreAnError) {
  ASSERT_TRUE(Queue(0, Exchange(0)).ok());
  ASSERT_TRUE(Queue(1, Exchange(1), 8).ok());
  EXPECT_NE(simulation_.Play().message().find("which receives"), std::string::npos);
}

// A channel that refuses its nth call.
class Broken : public Channel {
 public:
  explicit Broken(int at) : left_(at) {}
  Status GroupStart() override { return ++open, Next(); }
  Status Send(uint32_t, const std::byte*, size_t) override { return Next(); }
  Status Receive(uint32_t, std::byte*, size_t) override { return Next(); }
  Status GroupEnd() override { return --open, Next(); }
  Status Reduce(DType, Reduction, const std::vector<const std::byte*>&, std::byte*, size_t) override { return Next(); }

  int open = 0;

 private:
  Status Next() { return --left_ == 0 ? Status(Code::kInternal, "broken") : Status(); }
  int left_;
};

TEST(Runner, StopsAtTheFirstErrorAndLeavesNoGroupOpen) {
  const Runner runner(Decoded(Exchange(0)), Layout({{DType::kF32, 12}}), Reduction::kSum);
  std::vector<std::byte> value(12), scratch(runner.scratch_bytes());
  for (int at = 2; at <= 5; ++at) {
    Broken channel(at);
    EXPECT_EQ(runner.Run({value.data()}, scratch.data(), channel).message(), "broken") << at;
    EXPECT_EQ(channel.open, 0) << at;
  }
  Broken channel(6);
  EXPECT_TRUE(runner.Run({value.data()}, scratch.data(), channel).ok());
}

}  // namespace
}  // namespace jaxcomm

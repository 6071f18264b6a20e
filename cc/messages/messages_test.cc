#include "cc/messages/messages.h"

#include <memory>
#include <string>
#include <vector>

#include "cc/messages/runner.h"
#include "cc/messages/simulation/simulation.h"
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

std::string Refusal(const Words& words) {
  Result<Messages> found = Messages::Decode(words.data(), words.size());
  EXPECT_FALSE(found.ok());
  return found.ok() ? "" : found.status().message();
}

TEST(Messages, DecodesWhatAPlanCompiles) {
  const auto found = Decoded(Exchange(1));
  EXPECT_EQ(found->ranks(), 2u);
  EXPECT_EQ(found->rank(), 1u);
  EXPECT_EQ(found->slots(), 1u);
  ASSERT_EQ(found->rounds().size(), 1u);
  EXPECT_EQ(found->rounds()[0].sends[0].peer, 0u);
  EXPECT_EQ(found->rounds()[0].receives[0].place, 1u);
  EXPECT_EQ(found->rounds()[0].sums[0].places, (Words{1, 0}));
}

TEST(Messages, RefusesEveryPrefixAndEveryWordOutOfBounds) {
  const Words whole = Exchange(0);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(Refusal(Words(whole.begin(), whole.begin() + static_cast<long>(size))), "");
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    Words broken = whole;
    broken[at] = 0xFFFFFFFF;
    EXPECT_NE(Refusal(broken), "") << at;
  }
  Words longer = whole;
  longer.push_back(0);
  EXPECT_EQ(Refusal(longer), "messages: word 19: more words follow the last round");
  Words to_itself = whole;
  to_itself[10] = 0;
  EXPECT_EQ(Refusal(to_itself), "messages: word 11: a message goes to its own rank");
}

class TwoRanks : public testing::Test {
 protected:
  TwoRanks() : simulation_(2, 1), values_{{1, 2, 3}, {10, 20, 30}} {}

  Status Queue(uint32_t rank, const Words& words, int64_t bytes = 12) {
    runners_.emplace_back(Decoded(words), Layout({{DType::kF32, bytes}}), Reduction::kSum);
    scratch_.emplace_back(runners_.back().scratch_bytes());
    return runners_.back().Run({reinterpret_cast<std::byte*>(values_[rank].data())}, scratch_.back().data(),
                               simulation_.wire(rank));
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

// A wire that refuses its nth call.
class Broken : public Wire {
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
    Broken wire(at);
    EXPECT_EQ(runner.Run({value.data()}, scratch.data(), wire).message(), "broken") << at;
    EXPECT_EQ(wire.open, 0) << at;
  }
  Broken wire(6);
  EXPECT_TRUE(runner.Run({value.data()}, scratch.data(), wire).ok());
}

}  // namespace
}  // namespace jaxcomm

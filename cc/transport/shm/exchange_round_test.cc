#include "cc/transport/shm/exchange_round.h"

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::shm {
namespace {

using std::chrono::milliseconds;
using Clock = ExchangeRound::Clock;

constexpr uint64_t kOne = uint64_t{1} << 32, kOther = uint64_t{2} << 32;
constexpr milliseconds kLong{10000};

const auto kNoYield = [](const auto&) {};
const auto kLives = [] { return true; };

class ExchangeRoundTest : public testing::Test {
 protected:
  ExchangeRound Make(uint64_t tag = kOne, size_t ranks = 2) { return ExchangeRound(state_, tag, ranks); }
  static bool AwaitEntered(ExchangeRound& round, milliseconds limit) {
    return round.AwaitEntered(Clock::now() + limit, kNoYield);
  }
  static bool AwaitTaken(ExchangeRound& round, milliseconds limit) {
    return round.AwaitTaken(Clock::now() + limit, milliseconds(1), kNoYield, kLives);
  }

  StateWord state_{0};
};

TEST_F(ExchangeRoundTest, EndsWellIfAllTakeAndIsFreeWhenAllHaveLeft) {
  ExchangeRound one = Make(), two = Make();
  EXPECT_TRUE(one.Enter() && two.Enter());
  EXPECT_TRUE(AwaitEntered(one, kLong) && AwaitEntered(two, kLong));
  EXPECT_TRUE(one.Take());
  EXPECT_FALSE(one.IsRead());
  EXPECT_TRUE(two.Take());
  EXPECT_TRUE(one.IsRead());
  EXPECT_TRUE(AwaitTaken(one, kLong) && AwaitTaken(two, kLong));
  one.Leave();
  EXPECT_FALSE(Make(kOther).Enter());  // rank `two` has not left
  two.Leave();
  EXPECT_EQ(state_, 0u);
  EXPECT_TRUE(Make(kOther).Enter());
}

TEST_F(ExchangeRoundTest, ARankThatDoesNotComeClosesIt) {
  ExchangeRound one = Make(), late = Make();
  EXPECT_TRUE(one.Enter());
  EXPECT_FALSE(AwaitEntered(one, milliseconds(1)));
  EXPECT_FALSE(late.Enter());
  EXPECT_FALSE(Make(kOther).Enter());
  one.Leave();
  EXPECT_FALSE(late.Enter());
  EXPECT_TRUE(Make(kOther).Enter());
}

TEST_F(ExchangeRoundTest, NobodyTakesFromAClosedRound) {
  ExchangeRound one = Make(), two = Make();
  EXPECT_TRUE(one.Enter() && two.Enter());
  EXPECT_TRUE(one.Take());
  one.Close();
  EXPECT_FALSE(two.Take());
  EXPECT_FALSE(AwaitTaken(one, kLong));
}

TEST_F(ExchangeRoundTest, AReaderThatIsSlowOrHasEndedClosesIt) {
  for (const bool lives : {true, false}) {
    state_ = 0;
    ExchangeRound one = Make(), two = Make();
    EXPECT_TRUE(one.Enter() && two.Enter() && one.Take());
    EXPECT_FALSE(one.AwaitTaken(Clock::now() + (lives ? milliseconds(5) : kLong), milliseconds(1), kNoYield,
                                [lives] { return lives; }));
    EXPECT_FALSE(two.Take());
  }
}

TEST_F(ExchangeRoundTest, IsNotClosedOnceAllHaveTaken) {
  ExchangeRound one = Make(), two = Make();
  EXPECT_TRUE(one.Enter() && two.Enter() && one.Take() && two.Take());
  one.Close();
  EXPECT_TRUE(AwaitTaken(two, kLong));
}

TEST_F(ExchangeRoundTest, ARankThatDeclinesClosesItForItsCallOnly) {
  ExchangeRound one = Make();
  EXPECT_TRUE(one.Enter());
  Make(kOther).Decline();
  EXPECT_TRUE(Make().Enter());
  Make().Decline();
  EXPECT_FALSE(AwaitEntered(one, kLong));

  state_ = 0;
  Make(kOther).Decline();
  EXPECT_FALSE(Make(kOther).Enter());
  EXPECT_TRUE(Make().Enter());
}

// Each thread is a rank, and runs many calls with the same state. The ranks wait briefly and fail at random. All ranks
// must get the same result for a call.
TEST_F(ExchangeRoundTest, RanksAgreeHoweverTheyFail) {
  constexpr uint32_t kRanks = 3, kCalls = 3000;
  std::vector<std::vector<bool>> ends(kRanks, std::vector<bool>(kCalls));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(rank);
      for (uint32_t call = 0; call < kCalls; ++call) {
        ExchangeRound round = Make(uint64_t{call + 1} << 32, kRanks);
        if (random() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        const auto end = Clock::now() + (call % 100 == 0 ? milliseconds(50) : milliseconds(1));
        if (random() % 20 == 0) {
          round.Decline();
        } else if (round.Enter()) {
          bool ends_well = round.AwaitEntered(end, kNoYield) && random() % 20 != 0 && round.Take();
          if (ends_well) ends_well = round.AwaitTaken(end, milliseconds(1), kNoYield, kLives);
          if (!ends_well) round.Close();
          round.Leave();
          ends[rank][call] = ends_well;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  size_t well = 0;
  for (uint32_t call = 0; call < kCalls; ++call) {
    for (uint32_t rank = 1; rank < kRanks; ++rank) ASSERT_EQ(ends[rank][call], ends[0][call]) << "call " << call;
    well += ends[0][call] ? 1 : 0;
  }
  EXPECT_GT(well, 0u);
}

}  // namespace
}  // namespace jaxcomm::shm

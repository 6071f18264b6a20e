#include "cc/transport/shm/transfer_state.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm::shm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = TransferState::Clock;
using Reserved = TransferState::Reserved;

constexpr uint64_t kOne = uint64_t{1} << 5, kLater = uint64_t{2} << 5;  // of the same ranks
constexpr uint64_t kOther = uint64_t{1} << 37;
constexpr milliseconds kLong{10000};

const auto kNoYield = [](const auto&) {};
const auto kLives = [] { return true; };
const auto kMayCome = [] { return false; };

class TransferStateTest : public testing::Test {
 protected:
  TransferState Make(uint64_t tag = kOne) { return {word_, tag}; }
  static TransferState::Limits Within(milliseconds arrival, milliseconds end = kLong) {
    return {Clock::now() + arrival, Clock::now() + end};
  }
  static bool AwaitOffer(TransferState& state, milliseconds arrival) {
    return state.AwaitOffer(Within(arrival), kNoYield, kMayCome);
  }
  static bool AwaitTaken(TransferState& state, milliseconds arrival) {
    return state.AwaitTaken(Within(arrival), kNoYield, kLives);
  }
  static void Offer(TransferState& state) {
    EXPECT_EQ(state.Reserve(), Reserved::kYes);
    EXPECT_TRUE(state.Offer());
  }

  StateWord word_{0};
};

TEST_F(TransferStateTest, TheWordIsFreeWhenTheReceiverHasTaken) {
  TransferState sender = Make(), receiver = Make();
  Offer(sender);
  EXPECT_EQ(Make(kOther).Reserve(), Reserved::kBusy);
  EXPECT_EQ(Make(kLater).Reserve(), Reserved::kBehind);
  EXPECT_TRUE(AwaitOffer(receiver, milliseconds(0)));
  EXPECT_TRUE(receiver.BeginRead());
  EXPECT_TRUE(sender.IsInUse());
  EXPECT_TRUE(receiver.Take());
  EXPECT_FALSE(sender.IsInUse());
  EXPECT_TRUE(AwaitTaken(sender, milliseconds(0)));
  EXPECT_EQ(word_, 0u);
  EXPECT_EQ(Make(kOther).Reserve(), Reserved::kYes);
}

TEST_F(TransferStateTest, ASenderFindsThatTheReceiverHasClosed) {
  TransferState sender = Make(), receiver = Make();
  EXPECT_FALSE(AwaitOffer(receiver, milliseconds(2)));
  EXPECT_EQ(Make(kOther).Reserve(), Reserved::kBusy);  // otherwise the sender would not find it closed
  EXPECT_EQ(sender.Reserve(), Reserved::kClosed);
  EXPECT_EQ(word_, 0u);
}

TEST_F(TransferStateTest, AReceiverFindsThatTheSenderHasClosed) {
  TransferState sender = Make(), receiver = Make();
  EXPECT_TRUE(sender.Close());
  EXPECT_FALSE(AwaitOffer(receiver, kLong));
  EXPECT_EQ(word_, 0u);

  Offer(sender);
  EXPECT_FALSE(AwaitTaken(sender, milliseconds(1)));
  EXPECT_FALSE(receiver.BeginRead());
  EXPECT_EQ(word_, 0u);
}

TEST_F(TransferStateTest, ASenderWaitsForAReceiverThatReads) {
  TransferState sender = Make(), receiver = Make();
  Offer(sender);
  EXPECT_TRUE(receiver.BeginRead());
  std::thread reader([&] {
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(receiver.Take());
  });
  EXPECT_TRUE(AwaitTaken(sender, milliseconds(0)));
  reader.join();
}

TEST_F(TransferStateTest, AReceiverThatIsSlowOrHasEndedGetsNothing) {
  for (const bool lives : {true, false}) {
    TransferState sender = Make(), receiver = Make();
    Offer(sender);
    EXPECT_TRUE(receiver.BeginRead());
    EXPECT_FALSE(sender.AwaitTaken(Within(milliseconds(0), lives ? milliseconds(5) : kLong), kNoYield,
                                   [lives] { return lives; }));
    EXPECT_FALSE(receiver.Take());
    EXPECT_EQ(word_, 0u);
  }
}

TEST_F(TransferStateTest, AReceiverDoesNotCloseTheTransferOfAnother) {
  TransferState other = Make(kOther), receiver = Make();
  Offer(other);
  int asked = 0;
  EXPECT_FALSE(receiver.AwaitOffer(Within(milliseconds(0)), kNoYield, [&] { return ++asked == 3; }));
  EXPECT_TRUE(other.IsInUse());
  EXPECT_FALSE(receiver.AwaitOffer(Within(milliseconds(0), milliseconds(2)), kNoYield, kMayCome));
  EXPECT_TRUE(other.IsInUse());

  TransferState sender = Make();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(3));
    EXPECT_TRUE(other.Take());
    Offer(sender);
  });
  EXPECT_TRUE(AwaitOffer(receiver, kLong));
  late.join();
}

TEST_F(TransferStateTest, ASenderWaitsForEarlierTransfersOfTheSameRanksOnly) {
  TransferState earlier = Make(), later = Make(kLater), receiver = Make();
  Offer(earlier);
  Make(kOther).AwaitFree(Clock::now() + kLong, kNoYield);
  std::thread takes([&] {
    std::this_thread::sleep_for(milliseconds(3));
    EXPECT_TRUE(receiver.Take());
  });
  later.AwaitFree(Clock::now() + kLong, kNoYield);
  Offer(later);
  takes.join();
}

TEST_F(TransferStateTest, AnOfferThatWasMadeBeforeTheSenderEndedIsTaken) {
  TransferState sender = Make(), receiver = Make();
  EXPECT_TRUE(receiver.AwaitOffer(Within(kLong), kNoYield, [&] {
    Offer(sender);
    return true;
  }));
  EXPECT_TRUE(receiver.Take());
}

TEST_F(TransferStateTest, ASenderThatStopsBeforeItsOfferFindsThatTheReceiverHasClosed) {
  TransferState sender = Make(), receiver = Make();
  EXPECT_EQ(sender.Reserve(), Reserved::kYes);
  EXPECT_FALSE(receiver.AwaitOffer(Within(milliseconds(0), milliseconds(2)), kNoYield, kMayCome));
  EXPECT_FALSE(sender.Offer());
  EXPECT_EQ(word_, 0u);
}

// Two senders and two receivers share a word. They wait briefly and fail at random. If a sender's bytes are taken, its
// receiver must have taken them; a receiver that has closed its transfer must not be waited for.
TEST_F(TransferStateTest, SenderAndReceiverAgreeHoweverTheyFail) {
  constexpr uint32_t kPairs = 2, kCalls = 3000;
  std::vector<std::vector<bool>> sent(kPairs, std::vector<bool>(kCalls)), taken(sent);
  std::vector<std::vector<std::atomic<bool>>> uses_messages(kPairs), is_over(kPairs);
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    uses_messages[pair] = std::vector<std::atomic<bool>>(kCalls);
    is_over[pair] = std::vector<std::atomic<bool>>(kCalls);
  }
  std::vector<std::thread> threads;
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    const auto tag = [pair](uint32_t call) { return (uint64_t{pair} << 37) + (uint64_t{1 + call} << 5); };
    threads.emplace_back([&, pair, tag] {
      std::mt19937 random(pair);
      for (uint32_t call = 0; call < kCalls; ++call) {
        TransferState state = Make(tag(call));
        if (random() % 20 == 0) std::this_thread::sleep_for(microseconds(random() % 300));
        if (random() % 20 == 0) {
          state.Close();
        } else if (state.Reserve() == Reserved::kYes && state.Offer()) {
          const auto arrival = Clock::now() + (random() % 20 == 0 ? milliseconds(0) : kLong);
          sent[pair][call] = state.AwaitTaken({arrival, arrival + kLong}, kNoYield, kLives);
        }
        uses_messages[pair][call] = !sent[pair][call];
        is_over[pair][call] = true;
      }
    });
    threads.emplace_back([&, pair, tag] {
      std::mt19937 random(100 + pair);
      for (uint32_t call = 0; call < kCalls; ++call) {
        TransferState state = Make(tag(call));
        if (random() % 20 == 0) std::this_thread::sleep_for(microseconds(random() % 300));
        const TransferState::Limits limits = {Clock::now() + (random() % 20 == 0 ? milliseconds(0) : kLong),
                                              Clock::now() + kLong};
        if (state.AwaitOffer(limits, kNoYield, [&] { return uses_messages[pair][call].load(); }) && state.BeginRead()) {
          if (random() % 20 == 0) {
            state.Withdraw(/*while_read=*/true);
          } else {
            taken[pair][call] = state.Take();
          }
        }
        if (taken[pair][call]) continue;
        while (!is_over[pair][call]) std::this_thread::yield();  // until the call with messages is over
        state.ClearClosed();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  size_t well = 0;
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    for (uint32_t call = 0; call < kCalls; ++call) {
      ASSERT_EQ(sent[pair][call], taken[pair][call]) << "pair " << pair << ", call " << call;
      well += sent[pair][call] ? 1 : 0;
    }
  }
  EXPECT_GT(well, 0u);
  EXPECT_LT(well, size_t{kPairs} * kCalls);
}

}  // namespace
}  // namespace jaxcomm::shm

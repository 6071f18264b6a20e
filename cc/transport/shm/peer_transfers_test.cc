#include "cc/transport/shm/peer_transfers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cc/transport/shm/testing/job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;
using std::chrono::milliseconds;
using Clock = Transfers::Clock;

constexpr std::chrono::nanoseconds kLong = kTestLimit;
constexpr int64_t kCopied = shm::kTransferBufferBytes;  // the most bytes that are copied

const auto kMayCome = [] { return false; };

// Transfers from process 0 to process 1.
class PeerTransfersTest : public testing::Test {
 protected:
  static TransferPart Part(uint32_t number, uint64_t fingerprint = 1) {
    return {{7, number, 0, 0}, fingerprint, Clock::now()};
  }
  Transfers& to() { return *job_[0].transfers(1); }
  Transfers& from() { return *job_[1].transfers(0); }

  std::unique_ptr<OfferedBytes> Offer(const TransferPart& part, const Bytes& bytes) {
    return to().Offer(part, bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  bool Send(const TransferPart& part, const Bytes& bytes, std::chrono::nanoseconds limit = kLong) {
    const std::unique_ptr<OfferedBytes> offered = Offer(part, bytes);
    return offered && offered->Finish({limit, kLong});
  }
  bool Take(const TransferPart& part, Bytes& bytes, std::chrono::nanoseconds limit = kLong) {
    return from().Take(part, bytes.data(), static_cast<int64_t>(bytes.size()), {limit, kLong}, kMayCome).has_value();
  }

  ShmJob job_{2};
};

TEST_F(PeerTransfersTest, TheReceiverGetsTheBytesOfAnySize) {
  uint32_t number = 0;
  for (const int64_t size : {int64_t{1}, int64_t{1000}, kCopied, kCopied + 1, int64_t{3} << 20}) {
    for (int repeat = 0; repeat < 3 * static_cast<int>(shm::kRounds); ++repeat, ++number) {
      const Bytes content = Content(Id(number, 0, 1), static_cast<size_t>(size));
      std::thread sender([&] { EXPECT_TRUE(Send(Part(number), content)); });
      Bytes received(content.size());
      EXPECT_TRUE(Take(Part(number), received));
      sender.join();
      EXPECT_EQ(received, content);
    }
  }
}

TEST_F(PeerTransfersTest, TheSenderOfCopiedBytesNeitherWaitsNorKeepsThem) {
  const TransferPart sent = Part(0);
  {
    Bytes bytes(static_cast<size_t>(kCopied), std::byte{1});
    EXPECT_TRUE(Send(sent, bytes));
    std::fill(bytes.begin(), bytes.end(), std::byte{2});
  }
  job_.Leave(0);  // even a process that has ended has sent its bytes
  Bytes received(static_cast<size_t>(kCopied));
  const auto sender_at = from().Take(Part(0), received.data(), kCopied, {kLong, kLong}, [] { return true; });
  EXPECT_EQ(sender_at, sent.at);
  EXPECT_EQ(received, Bytes(received.size(), std::byte{1}));
}

TEST_F(PeerTransfersTest, ASenderThatIsAheadWaitsForAFreeCell) {
  const Bytes bytes(100, std::byte{1});
  for (uint32_t number = 0; number < shm::kRounds; ++number) EXPECT_TRUE(Send(Part(number), bytes));
  EXPECT_FALSE(Send(Part(shm::kRounds), bytes, milliseconds(1)));
  const std::unique_ptr<OfferedBytes> offered = Offer(Part(shm::kRounds), bytes);
  ASSERT_TRUE(offered);
  std::thread receiver([&] {
    for (uint32_t number = 0; number <= shm::kRounds; ++number) {
      Bytes received(bytes.size());
      EXPECT_TRUE(Take(Part(number), received));
      EXPECT_EQ(received, bytes);
    }
  });
  EXPECT_TRUE(offered->Finish({kLong, kLong}));
  receiver.join();
}

TEST_F(PeerTransfersTest, BothUseMessagesIfOneIsLate) {
  Bytes bytes(100);
  EXPECT_FALSE(Take(Part(0), bytes, milliseconds(1)));
  EXPECT_FALSE(Offer(Part(0), bytes));
  Bytes many(1 << 20);
  EXPECT_FALSE(Send(Part(2), many, milliseconds(1)));
  EXPECT_FALSE(Take(Part(2), many));
  Offer(Part(3), many) = nullptr;  // destroyed before Finish
  EXPECT_FALSE(Take(Part(3), many));
  for (uint32_t number = 4; number < 4 + shm::kRounds; ++number) {  // all cells can be used again
    EXPECT_TRUE(Send(Part(number), bytes));
    EXPECT_TRUE(Take(Part(number), bytes));
  }
}

TEST_F(PeerTransfersTest, AForgottenTransferMakesRoom) {
  const auto other = [](uint32_t number) { return TransferPart{{8, number, 0, 0}, 1, Clock::now()}; };
  uint32_t same_cell = 0;
  while (shm::RoundOf(other(same_cell).call) != shm::RoundOf(Part(0).call)) ++same_cell;
  const Bytes sent(100), many(1 << 20);
  Bytes received(sent.size());
  EXPECT_TRUE(Send(other(same_cell), sent));
  EXPECT_FALSE(Offer(Part(0), sent));  // the sender does not wait for other ranks, and leaves no trace
  EXPECT_TRUE(Take(other(same_cell), received));
  EXPECT_FALSE(Take(Part(0), received, milliseconds(1)));  // closes
  EXPECT_FALSE(Send(other(same_cell), sent, milliseconds(1)));
  from().Forget(Part(0).call);
  EXPECT_TRUE(Send(other(same_cell), sent));
  from().Forget(other(same_cell).call);  // bytes that the receiver never takes
  EXPECT_TRUE(Send(Part(0), sent));
  to().Forget(Part(0).call);  // ends nothing that this process has sent
  EXPECT_TRUE(Take(Part(0), received));
  std::unique_ptr<OfferedBytes> offered = Offer(Part(0), many);
  from().Forget(Part(0).call);
  EXPECT_FALSE(offered->Finish({kLong, kLong}));
}

TEST_F(PeerTransfersTest, AReceiverWithAnotherCallGetsNothing) {
  for (const size_t size : {size_t{100}, size_t{1} << 20}) {
    const auto number = static_cast<uint32_t>(size);
    const Bytes sent(size);
    Bytes longer(size + 1), same(size);
    std::thread sender([&] {
      EXPECT_EQ(Send(Part(number), sent), size == 100);
      EXPECT_EQ(Send(Part(number + 1, /*fingerprint=*/2), sent), size == 100);
      EXPECT_TRUE(Send(Part(number + shm::kRounds), sent));
    });
    EXPECT_FALSE(Take(Part(number), longer));
    EXPECT_FALSE(Take(Part(number + 1), same));
    EXPECT_TRUE(Take(Part(number + shm::kRounds), same));  // the cell can be used again
    sender.join();
  }
}

// Several threads of each process transfer at once, through the same cells. Senders overwrite their bytes at the end of
// each transfer. Both processes are late at random.
TEST_F(PeerTransfersTest, NoTransferTakesTheBytesOfAnother) {
  constexpr uint32_t kPairs = 3, kCalls = 600;
  std::atomic<int> wrong{0}, unlike{0}, all{0};
  std::vector<std::vector<std::atomic<int>>> sent(kPairs);  // 1: sent, 2: not sent
  for (auto& calls : sent) calls = std::vector<std::atomic<int>>(kCalls);
  std::vector<std::thread> threads;
  const auto part = [](uint32_t pair, uint32_t call) {
    return TransferPart{{uint64_t{pair} * shm::kRounds, call, 0, 0}, 1, Clock::now()};
  };
  const auto size_of = [](uint32_t call) { return call % 5 == 0 ? size_t{200} << 10 : size_t{300} + call; };
  const auto content = [](uint32_t pair, uint32_t call) { return static_cast<std::byte>(1 + pair + 3 * call); };
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    threads.emplace_back([&, pair] {
      std::mt19937 random(pair);
      for (uint32_t call = 0; call < kCalls; ++call) {
        Bytes bytes(size_of(call), content(pair, call));
        if (random() % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        const bool is_sent = Send(part(pair, call), bytes, milliseconds(random() % 20 == 0 ? 0 : 20));
        std::fill(bytes.begin(), bytes.end(), std::byte{0});
        sent[pair][call] = is_sent ? 1 : 2;
      }
    });
    threads.emplace_back([&, pair] {
      std::mt19937 random(100 + pair);
      for (uint32_t call = 0; call < kCalls; ++call) {
        Bytes received(size_of(call));
        if (random() % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        const milliseconds limit(random() % 20 == 0 ? 0 : 20);
        const bool is_taken = from()
                                  .Take(part(pair, call), received.data(), static_cast<int64_t>(received.size()),
                                        {limit, kLong}, [&] { return sent[pair][call] == 2; })
                                  .has_value();
        if (is_taken && received != Bytes(received.size(), content(pair, call))) ++wrong;
        while (sent[pair][call] == 0) std::this_thread::yield();
        if (is_taken != (sent[pair][call] == 1)) ++unlike;
        all += is_taken ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(unlike, 0);
  EXPECT_GT(all, 0);
}

}  // namespace
}  // namespace jaxcomm

#include "cc/transport/shm/exchanges.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
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
using std::chrono::nanoseconds;

constexpr nanoseconds kLong = kTestLimit;

// The result of an exchange at one rank.
struct Outcome {
  bool all = false;
  std::vector<Bytes> taken;  // bytes by rank
};

struct Call {
  CallId id;
  std::vector<uint32_t> processes;
  uint64_t fingerprint = 1;
  bool in_place = false;
};

Outcome Try(ShmJob& job, const Call& call, size_t rank, const Bytes& bytes, nanoseconds limit, bool fails = false) {
  Outcome outcome;
  const Exchange mine{
      call.id, call.processes, rank, call.fingerprint, All(bytes), std::chrono::steady_clock::now(), call.in_place};
  const std::unique_ptr<PendingExchange> pending = job[call.processes[rank]].Join(mine);
  outcome.all = pending && pending->Finish({limit, kLong}, [&](const std::vector<Exchanged>& taken) {
    if (fails) return false;
    for (const Exchanged& each : taken) {
      Bytes& copy = outcome.taken.emplace_back(bytes.size());
      if (!each.CopyTo(copy.data(), 0, static_cast<int64_t>(copy.size()))) return false;
    }
    return true;
  });
  return outcome;
}

// Runs each rank on its own thread.
std::vector<Outcome> OnThreads(size_t ranks, const std::function<Outcome(uint32_t rank)>& rank) {
  std::vector<Outcome> outcomes(ranks);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < ranks; ++i) threads.emplace_back([&, i] { outcomes[i] = rank(i); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Bytes> ContentOf(uint32_t call, uint32_t ranks, size_t bytes) {
  std::vector<Bytes> content;
  for (uint32_t rank = 0; rank < ranks; ++rank) content.push_back(Content(Id(call, rank, 0), bytes));
  return content;
}

TEST(ExchangesTest, AllRanksGetTheBytesOfAllInTheOrderOfTheRanks) {
  ShmJob job(4);
  uint32_t number = 0;
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{Transport::kMaxExchanged}}) {
    for (const std::vector<uint32_t>& processes :
         {std::vector<uint32_t>{0, 1, 2, 3}, std::vector<uint32_t>{3, 1}, std::vector<uint32_t>{2, 0, 3}}) {
      const auto ranks = static_cast<uint32_t>(processes.size());
      const std::vector<Bytes> content = ContentOf(++number, ranks, bytes);
      const Call call{Id(number, 0, 0).call, processes};
      for (const Outcome& outcome :
           OnThreads(ranks, [&](uint32_t rank) { return Try(job, call, rank, content[rank], kLong); })) {
        EXPECT_TRUE(outcome.all);
        EXPECT_EQ(outcome.taken, content);
      }
    }
  }
}

TEST(ExchangesTest, BytesBeyondTheMostAreNotExchanged) {
  ShmJob job(2);
  const Bytes bytes(Transport::kMaxExchanged + 1);
  EXPECT_FALSE(Try(job, {Id(1, 0, 0).call, {0, 1}}, 0, bytes, kLong).all);
}

TEST(ExchangesTest, ARankThatIsLateFindsTheExchangeClosedAndTheNextOneOpen) {
  ShmJob job(3);
  const std::vector<Bytes> content = ContentOf(1, 3, 64);
  const Call late{Id(1, 0, 0).call, {0, 1, 2}};
  for (const Outcome& outcome :
       OnThreads(2, [&](uint32_t rank) { return Try(job, late, rank, content[rank], milliseconds(1)); })) {
    EXPECT_FALSE(outcome.all);
    EXPECT_TRUE(outcome.taken.empty());
  }
  EXPECT_FALSE(Try(job, late, 2, content[2], kLong).all);       // the late rank must not wait for kLong
  const Call next{Id(1 + shm::kRounds, 0, 0).call, {0, 1, 2}};  // uses the same round as `late`
  for (const Outcome& outcome :
       OnThreads(3, [&](uint32_t rank) { return Try(job, next, rank, content[rank], kLong); })) {
    EXPECT_TRUE(outcome.all);
  }
}

TEST(ExchangesTest, ARankThatMayNotWaitEndsTheWaitOfTheOthers) {
  ShmJob job(3);
  const std::vector<Bytes> content = ContentOf(1, 3, 64);
  const Call call{Id(1, 0, 0).call, {0, 1, 2}};
  for (const Outcome& outcome : OnThreads(
           2, [&](uint32_t rank) { return Try(job, call, rank, content[rank], rank == 0 ? kLong : nanoseconds(0)); })) {
    EXPECT_FALSE(outcome.all);
  }
}

TEST(ExchangesTest, RanksThatBringDifferentCallsGetNothing) {
  ShmJob job(2);
  const Call calls[] = {{Id(1, 0, 0).call, {0, 1}, 1}, {Id(1, 0, 0).call, {0, 1}, 2}};
  for (const Outcome& outcome :
       OnThreads(2, [&](uint32_t rank) { return Try(job, calls[rank], rank, Bytes(8), kLong); })) {
    EXPECT_FALSE(outcome.all);
  }
  const Call call{Id(2, 0, 0).call, {0, 1}};
  for (const Outcome& outcome :
       OnThreads(2, [&](uint32_t rank) { return Try(job, call, rank, Bytes(8 + rank), kLong); })) {
    EXPECT_FALSE(outcome.all);
  }
}

TEST(ExchangesTest, BytesOfAnySizeAreReadInPlace) {
  ShmJob job(3);
  uint32_t number = 0;
  for (const size_t bytes : {size_t{1}, size_t{Transport::kMaxExchanged} + 1, size_t{3} << 20}) {
    const std::vector<Bytes> content = ContentOf(++number, 3, bytes);
    const Call call{Id(number, 0, 0).call, {0, 1, 2}, 1, /*in_place=*/true};
    for (const Outcome& outcome :
         OnThreads(3, [&](uint32_t rank) { return Try(job, call, rank, content[rank], kLong); })) {
      EXPECT_TRUE(outcome.all);
      EXPECT_EQ(outcome.taken, content);
    }
  }
}

// Exchanges one span of `bytes` bytes between each two ranks. Returns whether the exchange succeeded on this rank.
bool ExchangeSpans(ShmJob& job, const Call& call, uint32_t rank, int64_t bytes, nanoseconds limit) {
  const auto ranks = static_cast<uint32_t>(call.processes.size());
  const auto content = [&](uint32_t from, uint32_t to) {
    return Content(Id(call.id.launch, from, to), static_cast<size_t>(bytes));
  };
  std::vector<Bytes> sent;
  for (uint32_t to = 0; to < ranks; ++to) sent.push_back(content(rank, to));
  std::vector<ConstSpan> spans;
  for (uint32_t to = 0; to < ranks; ++to) {
    if (to != rank) spans.push_back({sent[to].data(), bytes, (bytes + 64) * static_cast<int64_t>(spans.size())});
  }
  const std::unique_ptr<PendingExchange> pending =
      job[call.processes[rank]].Join({call.id, call.processes, rank, 1, spans, std::chrono::steady_clock::now(),
                                      /*in_place=*/true, ReadPattern::kSpanPerReader});
  return pending && pending->Finish({limit, kLong}, [&](const std::vector<Exchanged>& taken) {
    for (uint32_t from = 0; from < ranks; ++from) {
      Bytes received(from == rank ? 0 : static_cast<size_t>(bytes));
      if (!taken[from].CopyTo(received.data(), 0, static_cast<int64_t>(received.size()))) return false;
      EXPECT_EQ(received, from == rank ? Bytes() : content(from, rank));
    }
    return true;
  });
}

TEST(ExchangesTest, EachRankReadsTheSpansForIt) {
  ShmJob job(4);
  uint32_t number = 0;
  for (const int64_t bytes : {int64_t{8}, Transport::kMaxExchanged / 3, int64_t{1} << 20}) {
    for (const std::vector<uint32_t>& processes :
         {std::vector<uint32_t>{0, 1, 2, 3}, std::vector<uint32_t>{3, 1}, std::vector<uint32_t>{2, 0, 3}}) {
      const Call call{Id(++number, 0, 0).call, processes};
      for (const Outcome& outcome : OnThreads(processes.size(), [&](uint32_t rank) {
             return Outcome{ExchangeSpans(job, call, rank, bytes, kLong), {}};
           })) {
        EXPECT_TRUE(outcome.all);
      }
      const Call late{Id(++number, 0, 0).call, processes};
      EXPECT_FALSE(ExchangeSpans(job, late, 0, bytes, milliseconds(1)));
      EXPECT_FALSE(ExchangeSpans(job, late, 1, bytes, kLong));  // rank 1 must not wait, because rank 0 has gone
    }
  }
}

TEST(ExchangesTest, ARankThatCannotReadEndsTheExchangeOnAllRanks) {
  ShmJob job(3);
  const std::vector<Bytes> content = ContentOf(1, 3, 1 << 20);
  const Call call{Id(1, 0, 0).call, {0, 1, 2}, 1, /*in_place=*/true};
  for (const Outcome& outcome :
       OnThreads(3, [&](uint32_t rank) { return Try(job, call, rank, content[rank], kLong, /*fails=*/rank == 1); })) {
    EXPECT_FALSE(outcome.all);
  }
}

// Each rank overwrites its bytes as soon as its exchange has succeeded or failed.
TEST(ExchangesTest, NoRankTakesBytesOfAnExchangeThatItsOwnerHasEnded) {
  constexpr uint32_t kRanks = 3, kCalls = 400;
  ShmJob job(kRanks);
  std::vector<std::vector<bool>> ends(kRanks, std::vector<bool>(kCalls));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  const std::vector<uint32_t> processes = {0, 1, 2};
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(rank);
      Bytes bytes(256 << 10);
      const Bytes& offered = bytes;
      for (uint32_t number = 0; number < kCalls; ++number) {
        std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(number + rank));
        if (random() % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        const Exchange mine{
            {9, number, 0, 0}, processes, rank, 1, All(offered), std::chrono::steady_clock::now(), true};
        const std::unique_ptr<PendingExchange> pending = job[rank].Join(mine);
        const bool fails = random() % 4 == 0;
        const auto arrivals = number % 10 == 0 ? milliseconds(50) : milliseconds(1);
        const nanoseconds end = random() % 4 == 0 ? nanoseconds(20000) : kLong;
        std::vector<Bytes> taken;
        ends[rank][number] = pending && pending->Finish({arrivals, end}, [&](const std::vector<Exchanged>& operands) {
          for (const Exchanged& each : operands) {
            Bytes& copy = taken.emplace_back(bytes.size());
            if (!each.CopyTo(copy.data(), 0, static_cast<int64_t>(copy.size()))) return false;
          }
          return !fails;
        });
        std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
        for (uint32_t from = 0; ends[rank][number] && from < kRanks; ++from) {
          if (taken[from] != Bytes(bytes.size(), static_cast<std::byte>(number + from))) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (uint32_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(ends[rank], ends[0]);
  EXPECT_NE(std::count(ends[0].begin(), ends[0].end(), true), 0);
  EXPECT_NE(std::count(ends[0].begin(), ends[0].end(), false), 0);
}

// Groups share rounds, and ranks are late at random. In each call all ranks must get the same outcome. If the exchange
// of a call succeeds, all ranks must get the bytes of that call.
TEST(ExchangesTest, AllRanksOfACallAgree) {
  constexpr uint32_t kProcesses = 4, kCalls = 1500;
  const std::vector<std::vector<uint32_t>> groups = {{0, 1, 2, 3}, {1, 0, 3}, {2, 3}};
  ShmJob job(kProcesses);
  std::vector<std::vector<std::vector<Outcome>>> outcomes;  // by group, call and rank
  for (const std::vector<uint32_t>& group : groups) {
    outcomes.emplace_back(kCalls, std::vector<Outcome>(group.size()));
  }
  const auto content = [](uint32_t group, uint32_t call, uint32_t rank) { return Content(Id(call, rank, group), 200); };
  std::vector<std::thread> threads;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    for (uint32_t rank = 0; rank < groups[group].size(); ++rank) {
      threads.emplace_back([&, group, rank] {
        std::mt19937 random(group * 10 + rank);
        for (uint32_t number = 0; number < kCalls; ++number) {
          const Call call{{uint64_t{group} * shm::kRounds, number, 0, 0}, groups[group]};
          if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
          auto limit = std::chrono::microseconds(random() % 5 == 0 ? 0 : 200);
          if (number % 100 == 0) limit = milliseconds(50);  // so that some exchanges succeed even on a busy machine
          outcomes[group][number][rank] = Try(job, call, rank, content(group, number, rank), limit);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  size_t all = 0;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    const auto ranks = static_cast<uint32_t>(groups[group].size());
    for (uint32_t number = 0; number < kCalls; ++number) {
      std::vector<Bytes> expected;
      for (uint32_t rank = 0; rank < ranks; ++rank) expected.push_back(content(group, number, rank));
      for (const Outcome& outcome : outcomes[group][number]) {
        ASSERT_EQ(outcome.all, outcomes[group][number][0].all) << "group " << group << ", call " << number;
        ASSERT_EQ(outcome.taken, outcome.all ? expected : std::vector<Bytes>())
            << "group " << group << ", call " << number;
        all += outcome.all ? 1 : 0;
      }
    }
  }
  EXPECT_GT(all, 0u);
}

}  // namespace
}  // namespace jaxcomm

// Calls whose ranks exchange operands over shared memory. Values, errors and statistics must be the same as in calls
// with messages.
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Floats = std::vector<float>;
using Site = std::vector<std::shared_ptr<MessageSite>>;  // by process

// A process's shared memory transport that counts the exchanges and can refuse them.
class CountedShm : public Transport {
 public:
  CountedShm(Transport* shm, bool exchanges) : shm_(*shm), exchanges_(exchanges) {}
  void Notify(uint32_t process, std::string_view notice) override { shm_.Notify(process, notice); }
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override {
    shm_.Post(process, id, std::move(spans), accepts_view, std::move(done));
  }
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override {
    shm_.Send(to, std::move(spans), std::move(done));
  }
  void Flush() override { shm_.Flush(); }
  void Cancel(const CallId& call) override { shm_.Cancel(call); }
  void Expect() override { shm_.Expect(); }
  void EndExpecting() override { shm_.EndExpecting(); }
  std::unique_ptr<PendingExchange> Join(Exchange mine) override {
    std::unique_ptr<PendingExchange> pending = exchanges_ ? shm_.Join(std::move(mine)) : nullptr;
    return pending ? std::make_unique<Counted>(std::move(pending), exchanged) : nullptr;
  }

  int exchanged = 0;

 private:
  class Counted : public PendingExchange {
   public:
    Counted(std::unique_ptr<PendingExchange> pending, int& exchanged)
        : pending_(std::move(pending)), exchanged_(exchanged) {}
    bool Finish(const WaitLimits& limits, const TakeExchanged& take) override {
      const bool all = pending_->Finish(limits, take);
      exchanged_ += all ? 1 : 0;
      return all;
    }

   private:
    const std::unique_ptr<PendingExchange> pending_;
    int& exchanged_;
  };

  Transport& shm_;
  const bool exchanges_;
};

// Processes with one rank each.
class Job {
 public:
  explicit Job(uint32_t processes, bool exchanges = true) {
    std::vector<Transport::Events*> events;
    for (uint32_t process = 0; process < processes; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      executors_[process]->SetDeadline(10);
      events.push_back(&executors_[process]->messages());
    }
    transports_ = ConnectShm(events, ShmTransport::ArenaBytes(processes));
    for (uint32_t process = 0; process < processes; ++process) {
      counted_.push_back(std::make_unique<CountedShm>(transports_[process].get(), exchanges));
      executors_[process]->messages().Connect(counted_[process].get());
    }
  }
  ~Job() {
    for (const std::unique_ptr<ShmTransport>& transport : transports_) transport->Leave();
    executors_.clear();
  }

  uint32_t ranks() const { return static_cast<uint32_t>(executors_.size()); }
  int exchanged(uint32_t process) const { return counted_[process]->exchanged; }
  Executor& executor(uint32_t process) { return *executors_[process]; }

  std::shared_ptr<MessageSite> MakeSite(uint32_t process, const std::vector<size_t>& leaves, DType dtype = DType::kF32,
                                        const std::string& schedule = "flat") {
    MessageGroup group{{}, "all_reduce/" + schedule + "/" + std::to_string(ranks()), {}};
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      group.ranks.push_back({rank, rank});
      group.lists.push_back(registry_.Find(group.list, rank));
    }
    std::vector<Leaf> sizes;
    for (const size_t leaf : leaves) sizes.push_back({dtype, static_cast<int64_t>(leaf * sizeof(float))});
    auto made = MessageSite::Make({"psum", "data", "none", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum},
                                  /*communicator=*/77, /*site=*/0, {group}, process);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_TRUE(made.value()->SetLeaves(sizes, executors_[process]->stats()).ok());
    return made.value();
  }
  Site MakeSite(const std::vector<size_t>& leaves, const std::string& schedule = "flat") {
    Site site;
    for (uint32_t process = 0; process < ranks(); ++process) {
      site.push_back(MakeSite(process, leaves, DType::kF32, schedule));
    }
    return site;
  }

  // A site of calls with one leaf.
  Site MakeSite(Kind kind, const std::string& list, size_t elements, bool is_in_place) {
    Site site;
    for (uint32_t process = 0; process < ranks(); ++process) {
      MessageGroup group{{}, list + "/" + std::to_string(ranks()), {}};
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        group.ranks.push_back({rank, rank});
        group.lists.push_back(registry_.Find(group.list, rank));
      }
      const Collective collective{kind, Reduction::kSum, std::nullopt, is_in_place};
      auto made = MessageSite::Make({"call", "data", "none", "train.py:57"}, collective, 77, 0, {group}, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      const Leaf leaf{DType::kF32, static_cast<int64_t>(elements * sizeof(float))};
      EXPECT_TRUE(made.value()->SetLeaves({leaf}, executors_[process]->stats()).ok());
      site.push_back(made.value());
    }
    return site;
  }

  // Runs one call of all ranks. Each rank has its own thread and arrives after its delay. Returns the statuses by rank.
  // `results`: by rank, the rank's only result; null if results and operands share memory.
  std::vector<Status> Call(const Site& site, int64_t run, std::vector<std::vector<Floats>>& values,
                           const std::vector<std::chrono::milliseconds>& delays = {},
                           std::vector<Floats>* results = nullptr) {
    std::vector<std::promise<Status>> ends(ranks());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        if (!delays.empty()) std::this_thread::sleep_for(delays[rank]);
        Buffers buffers;
        for (Floats& leaf : values[rank]) {
          buffers.operands.push_back(reinterpret_cast<std::byte*>(leaf.data()));
          buffers.results.push_back(reinterpret_cast<std::byte*>((results ? (*results)[rank] : leaf).data()));
        }
        executors_[rank]->messages().Arrive(site[rank], run, rank, std::move(buffers),
                                            [&ends, rank](const Status& status) { ends[rank].set_value(status); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Status> statuses;
    for (std::promise<Status>& end : ends) statuses.push_back(end.get_future().get());
    return statuses;
  }

 private:
  MessageRegistry registry_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<ShmTransport>> transports_;
  std::vector<std::unique_ptr<CountedShm>> counted_;
};

// Returns, by rank and leaf, values whose sum depends on the order of the additions.
std::vector<std::vector<Floats>> Values(uint32_t ranks, const std::vector<size_t>& leaves, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<Floats>> values(ranks);
  for (std::vector<Floats>& rank : values) {
    for (const size_t leaf : leaves) {
      Floats& made = rank.emplace_back(leaf);
      for (float& value : made) {
        value = std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 40));
      }
    }
  }
  return values;
}

TEST(ExchangingTest, BitsAreThoseOfASumByMessages) {
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    for (const std::vector<size_t>& leaves : {std::vector<size_t>{1}, std::vector<size_t>{7, 0, 300}}) {
      std::vector<std::vector<Floats>> results[2];
      for (const bool exchanges : {false, true}) {
        Job job(ranks, exchanges);
        const Site site = job.MakeSite(leaves);
        int exchanged = 0;
        // Repeats the call until its ranks exchange operands. The ranks do this only if they arrive within a
        // millisecond.
        for (int64_t run = 0; run < 200 && (run < 3 || (exchanges && exchanged == 0)); ++run) {
          const int before = job.exchanged(0);
          results[exchanges] = Values(ranks, leaves, ranks);
          for (const Status& status : job.Call(site, run, results[exchanges])) {
            ASSERT_TRUE(status.ok()) << status.message();
          }
          exchanged = job.exchanged(0) - before;
        }
        EXPECT_EQ(exchanged, exchanges ? 1 : 0);
        for (const std::vector<Floats>& rank : results[exchanges]) EXPECT_EQ(rank, results[exchanges][0]);
      }
      EXPECT_EQ(results[0], results[1]);
    }
  }
}

TEST(ExchangingTest, LargeSumsAndOtherSchedulesRunWithMessages) {
  Job job(3);
  EXPECT_FALSE(job.MakeSite({100})[0]->exchanging().processes.empty());
  EXPECT_FALSE(job.MakeSite({100}, "direct")[0]->exchanging().processes.empty());
  EXPECT_TRUE(job.MakeSite({100}, "ring")[0]->exchanging().processes.empty());
  EXPECT_TRUE(job.MakeSite(Kind::kReduceScatter, "reduce_scatter/ring", 10, false)[0]->exchanging().processes.empty());
  EXPECT_TRUE(job.MakeSite({size_t{Transport::kMaxExchanged} / sizeof(float) + 1})[0]->exchanging().processes.empty());
  EXPECT_TRUE(job.MakeSite({0})[0]->exchanging().processes.empty());
  Job many(17);
  const size_t most = Transport::kMaxExchanged / sizeof(float) * 16 / 17;  // 17 such operands have almost 1 MiB
  EXPECT_FALSE(many.MakeSite({most / 2}, "direct")[0]->exchanging().processes.empty());
  EXPECT_TRUE(many.MakeSite({most + 1}, "direct")[0]->exchanging().processes.empty());
}

// Compares collectives of one leaf with and without exchanges, for two and for three ranks.
TEST(ExchangingTest, EveryKindGivesTheBitsOfMessages) {
  struct Case {
    Kind kind;
    std::string list;
    size_t elements;  // of a slice
    bool is_in_place;
    uint32_t ranks;
  };
  const size_t many = 100000;
  for (const Case& each : {Case{Kind::kAllGather, "all_gather/ring", 10, false, 3},
                           Case{Kind::kAllGather, "all_gather/direct", many, false, 3},
                           Case{Kind::kReduceScatter, "reduce_scatter/direct", 100, false, 3},
                           Case{Kind::kReduceScatter, "reduce_scatter/direct", many, false, 2},
                           Case{Kind::kAllReduce, "all_reduce/direct", 100, false, 3},
                           Case{Kind::kAllReduce, "all_reduce/direct", 100, true, 3},
                           Case{Kind::kAllReduce, "all_reduce/direct", many, false, 2},
                           Case{Kind::kAllReduce, "all_reduce/direct", many, true, 2}}) {
    SCOPED_TRACE(each.list + ", " + std::to_string(each.elements) + " elements");
    std::vector<Floats> results[2];
    for (const bool exchanges : {false, true}) {
      Job job(each.ranks, exchanges);
      const Site site = job.MakeSite(each.kind, each.list, each.elements, each.is_in_place);
      int exchanged = 0;
      for (int64_t run = 0; run < 200 && (run < 2 || (exchanges && exchanged == 0)); ++run) {
        const size_t operands = each.kind == Kind::kReduceScatter ? each.ranks : 1;
        const size_t slices = each.kind == Kind::kAllGather ? each.ranks : 1;
        std::vector<std::vector<Floats>> values = Values(each.ranks, {operands * each.elements}, each.ranks);
        std::vector<Floats>& stored = results[exchanges];
        stored.assign(each.ranks, Floats(slices * each.elements));
        const int before = job.exchanged(0);
        for (const Status& status : job.Call(site, run, values, {}, each.is_in_place ? nullptr : &stored)) {
          ASSERT_TRUE(status.ok()) << status.message();
        }
        exchanged = job.exchanged(0) - before;
        for (uint32_t rank = 0; each.is_in_place && rank < each.ranks; ++rank) stored[rank] = values[rank][0];
      }
      EXPECT_EQ(exchanged, exchanges ? 1 : 0);
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST(ExchangingTest, ALateRankIsCountedAsLateAndOtherCallsAreExchangedAgain) {
  Job job(3);
  const Site site = job.MakeSite({100});
  std::vector<std::vector<Floats>> values = Values(3, {100}, 1);
  const auto call = [&](int64_t run, const std::vector<std::chrono::milliseconds>& delays) {
    for (const Status& status : job.Call(site, run, values, delays)) ASSERT_TRUE(status.ok()) << status.message();
  };
  call(1, {std::chrono::milliseconds(0), std::chrono::milliseconds(300), std::chrono::milliseconds(0)});
  EXPECT_EQ(job.exchanged(1), 0);
  for (uint32_t process = 0; process < 3; ++process) {
    const std::optional<CallRecord> record = site[process]->stats().Last();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->last, std::vector<uint32_t>{1});
    EXPECT_GT(record->arrivals[1], 0.1);
  }
  for (int64_t run = 2; run < 200 && job.exchanged(1) == 0; ++run) call(run, {});
  EXPECT_EQ(job.exchanged(1), 1);
  const std::optional<CallRecord> record = site[1]->stats().Last();
  ASSERT_TRUE(record);
  ASSERT_EQ(record->arrivals.size(), 3u);
  EXPECT_EQ(record->last.size(), 1u);
  EXPECT_GE(record->after_arrival, 0);
  for (const double arrival : record->arrivals) EXPECT_LT(arrival, 0.01);
}

TEST(ExchangingTest, RanksWithDifferentCallsGetTheErrorThatNamesBoth) {
  Job job(2);
  const Site site = {job.MakeSite(0, {100}), job.MakeSite(1, {50})};
  std::vector<std::vector<Floats>> values = {{Floats(100)}, {Floats(50)}};
  for (const Status& status : job.Call(site, 1, values)) {
    EXPECT_NE(status.message().find("f32[100]"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("f32[50]"), std::string::npos) << status.message();
  }
  EXPECT_EQ(job.exchanged(0), 0);
}

TEST(ExchangingTest, ARankThatNeverComesIsNamedAtTheDeadline) {
  Job job(2);
  job.executor(0).SetDeadline(0.3);
  const Site site = job.MakeSite({10});
  Floats values(10);
  std::promise<Status> end;
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  job.executor(0).messages().Arrive(site[0], 1, 0, {{bytes}, {bytes}, nullptr},
                                    [&](const Status& status) { end.set_value(status); });
  const Status status = end.get_future().get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace jaxcomm

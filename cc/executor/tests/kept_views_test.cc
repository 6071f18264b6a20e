// Sums over shared memory that would deadlock if receivers kept all views. A view is a received message that stays in
// the sender's memory. Messages that wait to be added would fill this memory, and the sender could then not send the
// messages for which the additions wait.
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/executor/executor.h"
#include "cc/program/message_registry.h"
#include "cc/transport/local/local.h"
#include "cc/transport/router.h"
#include "cc/transport/shm/shm_transport.h"
#include "cc/transport/shm/testing/connect.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;
using Site = std::vector<std::shared_ptr<MessageSite>>;  // by process

// Processes with the same number of ranks each, and with shared memory of the same size as in a real job.
class Job {
 public:
  Job(uint32_t processes, uint32_t ranks_of_each) : each_(ranks_of_each) {
    std::vector<Transport::Events*> events;
    for (uint32_t process = 0; process < processes; ++process) {
      executors_.push_back(std::make_unique<Executor>(2));
      executors_[process]->SetDeadline(10);
      events.push_back(&executors_[process]->messages());
      locals_.push_back(std::make_unique<LocalTransport>());
    }
    transports_ = ConnectShm(events, ShmTransport::ArenaBytes(processes));
    for (uint32_t process = 0; process < processes; ++process) {
      std::vector<uint32_t> routes(processes, 1);
      routes[process] = 0;
      routers_.push_back(std::make_unique<Router>(
          std::vector<Transport*>{locals_[process].get(), transports_[process].get()}, std::move(routes)));
      executors_[process]->messages().Connect(routers_[process].get());
    }
  }
  ~Job() {
    for (const std::unique_ptr<ShmTransport>& transport : transports_) transport->Leave();
    executors_.clear();
  }

  uint32_t ranks() const { return static_cast<uint32_t>(executors_.size()) * each_; }

  Site MakeSite(int64_t bytes, uint32_t number) {
    MessageGroup group{{}, "all_reduce/direct/" + std::to_string(ranks()), {}};
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      group.ranks.push_back({rank / each_, rank});
      group.lists.push_back(registry_.Find(group.list, rank));
    }
    Site site;
    for (uint32_t process = 0; process < executors_.size(); ++process) {
      auto made = MessageSite::Make({"psum", "data", "none", "train.py:57"}, {Kind::kAllReduce, Reduction::kSum},
                                    /*module=*/77, number, {group}, process);
      EXPECT_TRUE(made.ok()) << made.status().message();
      EXPECT_TRUE(made.value()->SetLeaves({{DType::kS8, bytes}}, executors_[process]->stats()).ok());
      site.push_back(made.value());
    }
    return site;
  }

  std::future<Status> Arrive(const Site& site, uint32_t rank, Bytes& values) {
    const auto end = std::make_shared<std::promise<Status>>();
    executors_[rank / each_]->messages().Arrive(site[rank / each_], /*run=*/1, rank,
                                                {{values.data()}, {values.data()}, {}},
                                                [end](const Status& status) { end->set_value(status); });
    return end->get_future();
  }

 private:
  const uint32_t each_;
  MessageRegistry registry_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<std::unique_ptr<ShmTransport>> transports_;
  std::vector<std::unique_ptr<LocalTransport>> locals_;
  std::vector<std::unique_ptr<Router>> routers_;
};

void ExpectEnds(std::vector<std::future<Status>>& ends) {
  for (std::future<Status>& end : ends) {
    const Status status = end.get();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

void ExpectSums(const std::vector<Bytes>& values, uint32_t sum) {
  const Bytes expected(values[0].size(), std::byte(sum));
  for (const Bytes& value : values) EXPECT_EQ(std::memcmp(value.data(), expected.data(), expected.size()), 0);
}

TEST(KeptViewsTest, WhatWaitsForARankOfTheSameProcessDoesNotKeepItWaiting) {
  for (const auto& [processes, bytes] : std::vector<std::pair<uint32_t, int64_t>>{{3, 6 << 20}, {8, 3 << 20}}) {
    Job job(processes, 2);
    const Site site = job.MakeSite(bytes, 0);
    std::vector<Bytes> values(job.ranks(), Bytes(static_cast<size_t>(bytes), std::byte{1}));
    std::vector<std::future<Status>> ends;
    for (uint32_t rank = 0; rank < job.ranks(); ++rank) ends.push_back(job.Arrive(site, rank, values[rank]));
    ExpectEnds(ends);
    ExpectSums(values, job.ranks());
  }
}

TEST(KeptViewsTest, TwoCallsThatComeInDifferentOrdersDoNotWaitForEachOther) {
  constexpr int64_t kBytes = 24 << 20;
  Job job(4, 1);
  const Site sites[] = {job.MakeSite(kBytes, 0), job.MakeSite(kBytes, 1)};
  std::vector<Bytes> values[] = {std::vector<Bytes>(4, Bytes(kBytes, std::byte{1})), {}};
  values[1] = values[0];
  std::vector<std::future<Status>> ends;
  const auto arrive = [&](int call, uint32_t rank) {
    ends.push_back(job.Arrive(sites[call], rank, values[call][rank]));
  };
  arrive(0, 0), arrive(1, 0), arrive(0, 1), arrive(1, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  arrive(1, 1), arrive(0, 2), arrive(0, 3), arrive(1, 3);
  ExpectEnds(ends);
  for (const std::vector<Bytes>& call : values) ExpectSums(call, 4);
}

}  // namespace
}  // namespace jaxcomm

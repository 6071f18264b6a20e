#include "cc/transport/rails/rails.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/simulated/simulated.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kSegment = 64, kMiB = int64_t{1} << 20;

using Bytes = std::vector<std::byte>;

// A kind of transport of its own: what is sent is there at once, so it overtakes what another rail carries.
class Instant : public Transport {
 public:
  void Connect(std::vector<Instant*> all, uint32_t self, Events* events) {
    all_ = std::move(all);
    self_ = self;
    events_ = events;
  }
  int carried() const { return carried_; }
  int flushed() const { return flushed_; }

  void Notify(uint32_t process, std::string_view notice) override { all_[process]->events_->OnNotice(self_, notice); }
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool, Received done) override {
    Bytes bytes;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto early = early_.find(id);
      if (early == early_.end() && gone_.count(process) == 0) {
        posted_[id] = {process, spans, done};
        return;
      }
      if (early != early_.end()) bytes = std::move(early->second);
    }
    Give(bytes, spans, done);
  }
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override {
    for (const Receiver& receiver : to) {
      all_[receiver.process]->Take(receiver.id, Bytes(spans[0].data, spans[0].data + spans[0].bytes));
      ++carried_;
    }
    done(Status());
  }
  void Flush() override { ++flushed_; }
  void Cancel(const CallId& call) override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_.insert(call);
    for (auto at = posted_.begin(); at != posted_.end();) at = at->first.call == call ? posted_.erase(at) : ++at;
  }
  void Disconnect(uint32_t process, const Status& why) override {
    all_[process]->End(self_, Status(Code::kInternal, "process " + std::to_string(self_) + " has left"));
    End(process, why);
  }

 private:
  struct Posted {
    uint32_t process;
    std::vector<Span> spans;
    Received done;
  };

  static void Give(const Bytes& bytes, const std::vector<Span>& spans, const Received& done) {
    if (bytes.empty()) return done(Status(Code::kInternal, "gone"), nullptr);
    std::memcpy(spans[0].data, bytes.data(), bytes.size());
    done(Status(), nullptr);
  }
  void Take(const MessageId& id, Bytes bytes) {
    Posted posted;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (cancelled_.count(id.call) > 0) return;
      const auto at = posted_.find(id);
      if (at == posted_.end()) {
        early_[id] = std::move(bytes);
        return;
      }
      posted = std::move(at->second);
      posted_.erase(at);
    }
    Give(bytes, posted.spans, posted.done);
  }
  void End(uint32_t process, const Status& why) {
    std::vector<Received> ended;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!gone_.insert(process).second) return;
      for (auto& entry : posted_) {
        if (entry.second.process == process) ended.push_back(entry.second.done);
      }
    }
    for (const Received& done : ended) done(why, nullptr);
    events_->OnPeerLeft(process, why);
  }

  std::vector<Instant*> all_;
  uint32_t self_ = 0;
  Events* events_ = nullptr;
  int carried_ = 0, flushed_ = 0;
  std::mutex mutex_;
  std::map<MessageId, Posted> posted_;
  std::map<MessageId, Bytes> early_;
  std::set<CallId> cancelled_;
  std::set<uint32_t> gone_;
};

RailTable Table(const std::vector<RailTable::Range>& ranges) { return RailTable::Make(ranges).value(); }

// A process, and what it has heard.
class Node : public Transport::Events {
 public:
  explicit Node(uint32_t processes) : rails(processes, 2, this) {}

  void OnNotice(uint32_t, std::string_view notice) override {
    Record([&] { notices.emplace_back(notice); });
  }
  void OnPeerGone(uint32_t process, const Status& why) override {
    Record([&] { EXPECT_TRUE(gone.emplace(process, why.message()).second) << "gone twice"; });
  }
  void Record(const std::function<void()>& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change();
    changed_.notify_all();
  }
  void Await(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, condition);
  }

  Rails rails;
  Instant instant;
  std::vector<std::string> notices;
  std::map<uint32_t, std::string> gone;
  int received = 0, sent = 0, failed = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Processes that are connected by a simulated rail and an instant one: calls of 1 MiB or more are split, 3 to 1.
class RailsTest : public testing::Test {
 protected:
  static constexpr uint32_t kProcesses = 3;

  void SetUp() override {
    for (uint32_t i = 0; i < kProcesses; ++i) nodes_.emplace_back(kProcesses);
    std::vector<Instant*> instants;
    for (Node& node : nodes_) instants.push_back(&node.instant);
    for (uint32_t i = 0; i < kProcesses; ++i) {
      Node& node = nodes_[i];
      network_.Connect(i, node.rails.events(0));
      node.instant.Connect(instants, i, node.rails.events(1));
      node.rails.Connect({&network_.transport(i), &node.instant});
      for (uint32_t other = 0; other < kProcesses; ++other) {
        EXPECT_TRUE(node.rails.AddProcess(other, table_, {0, 1}).ok());
      }
    }
  }
  void TearDown() override { network_.Stop(); }

  static MessageId Id(uint32_t from, uint32_t to, uint32_t segment, int64_t call_bytes) {
    return {{1, 2, 3, 4}, from, to, 0, segment, call_bytes};
  }
  static std::byte Value(uint32_t segment) { return static_cast<std::byte>(7 * segment + 1); }

  void Post(uint32_t from, uint32_t to, Bytes& memory, int64_t call_bytes) {
    Node& node = nodes_[to];
    for (uint32_t segment = 0; segment * kSegment < static_cast<int64_t>(memory.size()); ++segment) {
      node.rails.Post(from, Id(from, to, segment, call_bytes), {{&memory[segment * kSegment], kSegment, 0}}, false,
                      [&node](const Status& status, std::shared_ptr<const std::byte>) {
                        node.Record([&] { ++(status.ok() ? node.received : node.failed); });
                      });
    }
  }
  // The segments are the same for all receivers.
  void Send(uint32_t from, const std::vector<uint32_t>& to, uint32_t segments, int64_t call_bytes) {
    Node& node = nodes_[from];
    for (uint32_t segment = 0; segment < segments; ++segment) {
      sent_.emplace_back(kSegment, Value(segment));
      std::vector<Receiver> receivers;
      for (const uint32_t process : to) receivers.push_back({process, Id(from, process, segment, call_bytes)});
      node.rails.Send(receivers, {{sent_.back().data(), kSegment, 0}}, [&node](const Status& status) {
        node.Record([&] { ++(status.ok() ? node.sent : node.failed); });
      });
    }
  }

  RailTable table_ = Table({{0, {1024, 0}}, {kMiB, {768, 256}}});
  std::deque<Bytes> sent_;
  SimulatedNetwork network_{kProcesses, /*seed=*/5};
  std::deque<Node> nodes_;
};

TEST_F(RailsTest, SegmentsGoOverTheRailsOfTheTable) {
  constexpr uint32_t kSegments = 40;
  Bytes early(kSegments * kSegment), late(kSegments * kSegment);
  Post(0, 1, early, kMiB);
  Send(0, {1, 2}, kSegments, kMiB);
  Post(0, 2, late, kMiB);
  nodes_[1].Await([&] { return nodes_[1].received == kSegments; });
  nodes_[2].Await([&] { return nodes_[2].received == kSegments; });
  nodes_[0].Await([&] { return nodes_[0].sent == kSegments; });
  for (uint32_t segment = 0; segment < kSegments; ++segment) {
    EXPECT_EQ(early[segment * kSegment], Value(segment));
    EXPECT_EQ(late[(segment + 1) * kSegment - 1], Value(segment));
  }
  EXPECT_EQ(nodes_[0].instant.carried(), 2 * 10);
}

TEST_F(RailsTest, NoticesAndSmallCallsAreOnTheFirstRail) {
  Bytes memory(8 * kSegment);
  Post(0, 1, memory, kMiB - 1);
  std::vector<std::string> expected;
  for (int i = 0; i < 20; ++i) {
    expected.push_back(std::to_string(i));
    nodes_[0].rails.Notify(1, expected.back());
  }
  Send(0, {1}, 8, kMiB - 1);
  nodes_[1].Await([&] { return nodes_[1].received == 8 && nodes_[1].notices.size() == expected.size(); });
  EXPECT_EQ(nodes_[1].notices, expected);
  EXPECT_EQ(nodes_[0].instant.carried(), 0);
}

// As over TCP, where the thread of the first rail may be serving it.
TEST_F(RailsTest, AllRailsAreFlushedWhereTheFirstNeedsNoHelp) {
  nodes_[0].rails.Help(std::chrono::seconds(60), [] {
    ADD_FAILURE() << "a simulated rail lets nobody help";
    return true;
  });
  EXPECT_EQ(nodes_[0].instant.flushed(), 1);
}

TEST_F(RailsTest, NothingComesOfACancelledCall) {
  Bytes memory(40 * kSegment);
  Post(0, 1, memory, kMiB);
  nodes_[1].rails.Cancel({1, 2, 3, 4});
  Send(0, {1}, 40, kMiB);
  nodes_[0].rails.Notify(1, "after it");  // over one of the rails; the other delivers at once
  nodes_[1].Await([&] { return nodes_[1].notices.size() == 1; });
  EXPECT_EQ(nodes_[1].received + nodes_[1].failed, 0);
  EXPECT_EQ(memory, Bytes(40 * kSegment));
}

TEST_F(RailsTest, WhereARailFailsTheProcessIsGoneAndAllPostsEnd) {
  Bytes memory(40 * kSegment), other(4 * kSegment);
  Post(0, 1, memory, kMiB);
  Post(2, 1, other, kMiB);
  network_.Kill(0);  // on the simulated rail
  nodes_[1].Await([&] { return nodes_[1].failed == 40 && nodes_[1].gone.size() == 1; });
  EXPECT_EQ(nodes_[1].gone[0], "process 0 ended");
  nodes_[0].Await([&] { return nodes_[0].gone.size() == 2; });
  Send(2, {1}, 4, kMiB);
  nodes_[1].Await([&] { return nodes_[1].received == 4; });
}

TEST_F(RailsTest, WhatWaitsOnAnotherRailEndsForTheReasonOfTheOneThatFailed) {
  Bytes memory(kSegment);
  std::string error;
  nodes_[1].rails.Post(0, Id(0, 1, /*segment=*/3, kMiB), {{memory.data(), kSegment, 0}}, false,
                       [&](const Status& status, auto) { error = status.message(); });
  nodes_[1].rails.events(0)->OnPeerGone(0, Status(Code::kInternal, "it is silent"));
  EXPECT_EQ(error, "it is silent");
  EXPECT_EQ(nodes_[1].gone[0], "it is silent");
}

TEST_F(RailsTest, RailsOfAProcessThatLeavesEndOneByOne) {
  Bytes memory(4 * kSegment);
  Post(0, 1, memory, kMiB);
  nodes_[1].rails.events(0)->OnPeerLeft(0, Status(Code::kInternal, "it has left"));
  EXPECT_TRUE(nodes_[1].gone.empty());
  Send(0, {1}, 4, kMiB);  // the fourth is the instant rail's, which carries on
  EXPECT_EQ(memory[3 * kSegment], Value(3));
  nodes_[1].rails.events(1)->OnPeerLeft(0, Status(Code::kInternal, "too"));
  EXPECT_EQ(nodes_[1].gone[0], "it has left");
}

TEST_F(RailsTest, AFailureSaysMoreThanAGoodbye) {
  nodes_[1].rails.events(1)->OnPeerLeft(0, Status(Code::kInternal, "it has left"));
  nodes_[1].rails.events(0)->OnPeerGone(0, Status(Code::kInternal, "it is silent"));
  EXPECT_EQ(nodes_[1].gone[0], "it is silent");
}

TEST(RailsTableTest, OnlyRailsThatLeadToAProcessHaveShares) {
  Rails rails(2, 3, nullptr);
  EXPECT_EQ(rails.AddProcess(1, Table({{0, {512, 0, 512}}}), {0, 1}).message(),
            "process 1 has a share on rail 2, which does not lead to it");
}

}  // namespace
}  // namespace jaxcomm

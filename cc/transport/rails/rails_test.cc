#include "cc/transport/rails/rails.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/testing/fake_rail.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Bytes = std::vector<std::byte>;
using State = std::pair<int, std::string>;  // how often a callback ran, and its error

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLarge = Rails::kMaxCopied + 1;

Bytes Pattern(int64_t size, uint32_t seed) {
  Bytes bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

// A process, and what it has heard.
class Node : public Transport::Events {
 public:
  Node(uint32_t processes, uint32_t num_rails) : rails(processes, num_rails, this) {}

  void OnNotice(uint32_t process, std::string_view notice) override { notices[process].emplace_back(notice); }
  void OnPeerGone(uint32_t process, const Status& why) override {
    EXPECT_TRUE(gone.emplace(process, why.message()).second) << "gone twice";
  }

  Rails rails;
  std::map<uint32_t, std::vector<std::string>> notices;
  std::map<uint32_t, std::string> gone;
};

// A message between two processes, with what has come of it.
struct Message {
  Message(uint32_t from, uint32_t to, const MessageId& id, int64_t size)
      : from(from), to(to), id(id), bytes(Pattern(size, id.segment)), memory(static_cast<size_t>(size)) {}

  uint32_t from, to;
  MessageId id;
  Bytes bytes, memory;
  State sent{0, ""}, received{0, ""};
};

// Processes that are connected by rails: of calls of 1 MiB or more, each carries a part.
class RailsTest : public testing::Test {
 protected:
  void Make(uint32_t processes, const std::vector<RailTable::Range>& shares) {
    const auto num_rails = static_cast<uint32_t>(shares[0].shares.size());
    for (uint32_t rail = 0; rail < num_rails; ++rail) rails_.emplace_back(processes);
    std::vector<uint32_t> all(num_rails);
    for (uint32_t rail = 0; rail < num_rails; ++rail) all[rail] = rail;
    for (uint32_t i = 0; i < processes; ++i) {
      Node& node = nodes_.emplace_back(processes, num_rails);
      std::vector<Transport*> transports;
      for (uint32_t rail = 0; rail < num_rails; ++rail) {
        transports.push_back(&rails_[rail].at(i));
        rails_[rail].Connect(i, node.rails.events(rail));
      }
      node.rails.Connect(transports);
      for (uint32_t other = 0; other < processes; ++other) {
        if (other != i) {
          EXPECT_TRUE(node.rails.AddProcess(other, shares, all).ok());
        }
      }
    }
  }
  // Two processes and two rails.
  void MakeTwo() { Make(2, {{0, {1024, 0}}, {kMiB, {768, 256}}}); }

  Message& New(uint32_t from, uint32_t to, int64_t size, int64_t call_bytes, uint32_t call = 1) {
    const auto segment = static_cast<uint32_t>(messages_.size());
    return messages_.emplace_back(from, to, MessageId{{1, call, 3, 4}, from, to, 0, segment, call_bytes}, size);
  }
  void Post(Message& message) {
    nodes_[message.to].rails.Post(message.from, message.id,
                                  {{message.memory.data(), static_cast<int64_t>(message.memory.size()), 0}}, false,
                                  [&message](const Status& status, std::shared_ptr<const std::byte>) {
                                    ++message.received.first;
                                    message.received.second = status.message();
                                  });
  }
  void Send(Message& message) {
    nodes_[message.from].rails.Send({{message.to, message.id}},
                                    {{message.bytes.data(), static_cast<int64_t>(message.bytes.size()), 0}},
                                    [&message](const Status& status) {
                                      ++message.sent.first;
                                      message.sent.second = status.message();
                                    });
  }
  // Brings what is on its way: all, or so many.
  void Run(int steps = 1 << 30) {
    for (bool some = true; some && steps > 0;) {
      some = false;
      const size_t first = random_() % rails_.size();
      for (size_t i = 0; i < rails_.size() && !some; ++i) some = rails_[(first + i) % rails_.size()].Step(random_);
      --steps;
    }
  }
  // Time passes, as if the processes' threads looked.
  void Wait(std::chrono::milliseconds time) {
    for (const auto end = now_ + time; now_ < end; now_ += std::chrono::milliseconds(20)) {
      for (Node& node : nodes_) node.rails.Look(now_);
      Run();
    }
  }
  void ExpectAll() {
    const State once{1, ""};
    for (const Message& message : messages_) {
      EXPECT_EQ(message.received, once) << message.id.segment;
      EXPECT_EQ(message.sent, once) << message.id.segment;
      EXPECT_TRUE(message.memory == message.bytes) << message.id.segment;
    }
    for (const FakeRail& rail : rails_) {
      for (uint32_t process = 0; process < nodes_.size(); ++process) EXPECT_EQ(rail.kept(process), 0u);
    }
  }

  std::mt19937 random_{5};
  std::chrono::steady_clock::time_point now_{std::chrono::hours(1)};
  std::deque<FakeRail> rails_;
  std::deque<Node> nodes_;
  std::deque<Message> messages_;
};

TEST_F(RailsTest, SegmentsGoOverTheRailsByTheirSharesAndArriveWhicheverWayTheyCome) {
  MakeTwo();
  for (int i = 0; i < 40; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    if (i % 2) Post(message);
    Send(message);
    if (i % 2 == 0) Post(message);
  }
  Run();
  ExpectAll();
  EXPECT_EQ(rails_[0].carried(), 30);
  EXPECT_EQ(rails_[1].carried(), 10);
}

TEST_F(RailsTest, NoticesAndSmallCallsAreOnTheFirstRail) {
  MakeTwo();
  for (int i = 0; i < 20; ++i) {
    nodes_[0].rails.Notify(1, std::to_string(i));
    Message& message = New(0, 1, 10, kMiB - 1);
    Post(message);
    Send(message);
  }
  Run();
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0].size(), 20u);
  EXPECT_EQ(rails_[1].carried(), 0);
}

TEST_F(RailsTest, ALargeMessageCountsAsSentOnceTheOtherSideHasIt) {
  MakeTwo();
  Message& large = New(0, 1, kLarge, kMiB);
  Message& small = New(0, 1, 10, kMiB);
  Send(large);
  Send(small);
  Run();
  EXPECT_EQ(large.sent.first, 0);
  EXPECT_EQ(small.sent.first, 1);
  Post(large);
  Post(small);
  Run();
  ExpectAll();
}

TEST_F(RailsTest, AllRailsAreFlushedWhereTheFirstNeedsNoHelp) {
  MakeTwo();
  nodes_[0].rails.Help(std::chrono::seconds(60), [] { return true; });
  EXPECT_GE(rails_[1].flushed(), 1);
}

TEST_F(RailsTest, NothingComesOfACancelledCall) {
  MakeTwo();
  for (int i = 0; i < 8; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Run(3);
  std::vector<State> received, sent;
  for (Node& node : nodes_) node.rails.Cancel(messages_[0].id.call);
  for (const Message& message : messages_) {
    received.push_back(message.received);
    sent.push_back(message.sent);
  }
  rails_[0].Reset(0, 1);
  Run();
  for (size_t i = 0; i < messages_.size(); ++i) {
    EXPECT_EQ(messages_[i].received, received[i]);
    EXPECT_EQ(messages_[i].sent, sent[i]);
  }
  EXPECT_EQ(rails_[1].kept(1), 0u);
}

TEST_F(RailsTest, WhatAFailedRailCarriedComesOverTheOther) {
  MakeTwo();
  for (int i = 0; i < 40; ++i) {
    nodes_[0].rails.Notify(1, std::to_string(i));
    Message& message = New(i % 2, 1 - i % 2, i % 3 ? kLarge : 10, kMiB);
    if (i % 5) Post(message);
    Send(message);
  }
  Run(30);
  rails_[0].Reset(0, 1);
  for (int i = 0; i < 40; i += 5) Post(messages_[i]);
  Run();
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0].size(), 40u);
  EXPECT_TRUE(nodes_[0].gone.empty());
}

TEST_F(RailsTest, ASilentRailIsFencedAfter100Milliseconds) {
  MakeTwo();
  rails_[1].SetSilent(0, 1, true);
  for (int i = 0; i < 40; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Wait(std::chrono::milliseconds(60));
  EXPECT_TRUE(
      std::any_of(messages_.begin(), messages_.end(), [](const Message& it) { return it.received.first == 0; }));
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
  Wait(std::chrono::milliseconds(120));
  ExpectAll();
  ASSERT_EQ(nodes_[0].rails.lost().size(), 1u);
  EXPECT_EQ(nodes_[0].rails.lost()[0].rail, 1u);
  EXPECT_EQ(nodes_[0].rails.lost()[0].fences, 1u);
  EXPECT_EQ(nodes_[1].rails.lost().size(), 1u);
}

TEST_F(RailsTest, TheFirstRailIsFencedThoughNobodyElseHasAnythingToCarry) {
  MakeTwo();
  rails_[0].SetSilent(0, 1, true);
  Message& message = New(0, 1, 10, 10);
  Post(message);
  Send(message);
  Wait(std::chrono::milliseconds(500));
  ExpectAll();
}

TEST_F(RailsTest, TheLastRailIsNotFencedForItsSilence) {
  MakeTwo();
  rails_[0].Reset(0, 1);
  Run();
  rails_[1].SetSilent(0, 1, true);
  Message& message = New(0, 1, 10, 10);
  Post(message);
  Send(message);
  Wait(std::chrono::seconds(5));
  EXPECT_EQ(message.received.first, 0);
  rails_[1].SetSilent(0, 1, false);
  Run();
  ExpectAll();
}

TEST_F(RailsTest, AHostThatIsSilentOnAllRailsIsNotFenced) {
  MakeTwo();
  for (FakeRail& rail : rails_) rail.SetSilent(0, 1, true);
  for (int i = 0; i < 8; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Wait(std::chrono::seconds(5));
  for (FakeRail& rail : rails_) rail.SetSilent(0, 1, false);
  Run();
  ExpectAll();
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
}

TEST_F(RailsTest, AProcessThatDidNotLookForAWhileFencesNothingForIt) {
  MakeTwo();
  rails_[1].SetSilent(0, 1, true);
  for (int i = 0; i < 40; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Wait(std::chrono::milliseconds(60));
  now_ += std::chrono::seconds(10);
  Wait(std::chrono::milliseconds(80));
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
}

TEST_F(RailsTest, ARestoredRailCarriesItsShareAgain) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const int carried = rails_[1].carried();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  Message& posted = New(1, 0, kLarge, kMiB);
  Post(posted);
  EXPECT_FALSE(nodes_[0].rails.Restore({1, 1, lost.fences + 1}, [] { return Status(); }).ok());
  EXPECT_FALSE(nodes_[0].rails.Restore({1, 0, 0}, [] { return Status(); }).ok());
  const Status full(Code::kInternal, "no");
  EXPECT_EQ(nodes_[0].rails.Restore(lost, [&] { return full; }).message(), "no");
  EXPECT_EQ(nodes_[0].rails.lost().size(), 1u);
  rails_[1].Reconnect(0, 1);
  for (uint32_t process : {0, 1}) {
    EXPECT_TRUE(nodes_[process].rails.Restore({1 - process, 1, lost.fences}, [] { return Status(); }).ok());
  }
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
  Send(posted);
  for (int i = 0; i < 40; ++i) {
    Message& message = New(0, 1, kLarge, kMiB);
    Post(message);
    Send(message);
  }
  Run();
  ExpectAll();
  EXPECT_GE(rails_[1].carried() - carried, 10);
}

TEST_F(RailsTest, SharesAreThoseInForceAndTheirHistoryIsKept) {
  MakeTwo();
  const auto shares = [this] {
    std::vector<uint32_t> found;
    for (const Rails::State& state : nodes_[0].rails.states()) found.push_back(state.shares.back().second);
    return found;
  };
  EXPECT_EQ(shares(), (std::vector<uint32_t>{768, 256}));
  rails_[1].Reset(0, 1);
  Run();
  EXPECT_EQ(shares(), (std::vector<uint32_t>{1024, 0}));
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  rails_[1].Reconnect(0, 1);
  for (uint32_t process : {0, 1}) {
    EXPECT_TRUE(nodes_[process].rails.Restore({1 - process, 1, lost.fences}, [] { return Status(); }).ok());
  }
  EXPECT_EQ(shares(), (std::vector<uint32_t>{768, 256}));
  std::ostringstream history;
  nodes_[0].rails.states()[1].history.WriteJson(history);
  const std::string json = history.str();
  EXPECT_LT(json.find("\"is_open\":false,\"why\":\"reset\""), json.find("\"is_open\":true")) << json;
}

TEST_F(RailsTest, ARailThatOneSideAloneHasTakenBackIsLostAgainOnBoth) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  rails_[1].Reconnect(0, 1);
  EXPECT_TRUE(nodes_[0].rails.Restore(lost, [] { return Status(); }).ok());
  Message& message = New(0, 1, kLarge, kMiB);
  Post(message);
  Send(message);
  rails_[1].Reset(0, 1);
  Run();
  ExpectAll();
  for (const Node& node : nodes_) {
    ASSERT_EQ(node.rails.lost().size(), 1u);
    EXPECT_EQ(node.rails.lost()[0].fences, lost.fences + 1);
  }
}

TEST_F(RailsTest, AProcessIsGoneThatFailsWhileARailToItIsNotRestored) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const Status no(Code::kInternal, "no");
  const auto fail = [&] {
    rails_[0].Reset(0, 1);
    return no;
  };
  EXPECT_FALSE(nodes_[0].rails.Restore(nodes_[0].rails.lost().at(0), fail).ok());
  EXPECT_EQ(nodes_[0].gone[1], "reset");
}

TEST_F(RailsTest, WhatHasNoRailGoesOverTheOneThatIsRestored) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  rails_[1].Reconnect(0, 1);
  Message &before = New(0, 1, kLarge, kMiB), &meanwhile = New(0, 1, kLarge, kMiB);
  Post(before);
  Send(before);
  const auto fail = [&] {
    rails_[0].Reset(0, 1);
    Post(meanwhile);
    Send(meanwhile);
    nodes_[0].rails.Notify(1, "here");
    return Status();
  };
  const auto there = [&] { return nodes_[0].rails.Restore(lost, fail); };
  EXPECT_TRUE(nodes_[1].rails.Restore({0, 1, lost.fences}, there).ok());
  Run();
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0], std::vector<std::string>{"here"});
}

TEST_F(RailsTest, ARailThatIsRestoredDuringAPostHasItOnce) {
  MakeTwo();
  rails_[0].BeforePost([&] {
    rails_[1].Reset(0, 1);
    Run();
    const Rails::Lost lost = nodes_[0].rails.lost().at(0);
    rails_[1].Reconnect(0, 1);
    EXPECT_TRUE(nodes_[0].rails.Restore(lost, [] { return Status(); }).ok());
    EXPECT_TRUE(nodes_[1].rails.Restore({0, 1, lost.fences}, [] { return Status(); }).ok());
  });
  Message& message = New(0, 1, kLarge, kMiB);
  Post(message);
  Send(message);
  Run();
  ExpectAll();
}

TEST_F(RailsTest, ARailIsNotRestoredDuringItsPost) {
  MakeTwo();
  rails_[1].BeforePost([&] {
    rails_[1].Reset(0, 1);
    Run();
    EXPECT_TRUE(nodes_[1].rails.lost().empty());
  });
  Message& message = New(0, 1, kLarge, kMiB);
  Post(message);
  EXPECT_EQ(nodes_[1].rails.lost().size(), 1u);
}

TEST_F(RailsTest, NothingIsSentAgainWhileTheRailThatHadItIsFenced) {
  Make(2, {{0, {342, 341, 341}}});
  Message& message = New(0, 1, kLarge, 0);
  Post(message);
  Send(message);
  rails_[0].SetSilent(0, 1, true);
  rails_[0].BeforeFence([&] {
    rails_[1].Reset(0, 1);
    Run();
    EXPECT_EQ(rails_[2].carried(), 0);
  });
  nodes_[0].rails.events(0)->OnPeerGone(1, Status(Code::kInternal, "reset"));
  Run();
  ExpectAll();
}

TEST_F(RailsTest, AProcessIsGoneOnceAllItsRailsHaveFailed) {
  Make(3, {{0, {1024, 0}}, {kMiB, {768, 256}}});
  Message &posted = New(0, 1, kLarge, kMiB), &sent = New(1, 0, kLarge, kMiB), &other = New(2, 1, kLarge, kMiB);
  Post(posted);
  Send(sent);
  Post(other);
  rails_[0].Reset(0, 1);
  Run();
  EXPECT_TRUE(nodes_[1].gone.empty());
  rails_[1].Reset(0, 1);
  EXPECT_EQ(nodes_[1].gone[0], "reset");
  EXPECT_EQ(posted.received, State(1, "reset"));
  EXPECT_EQ(sent.sent, State(1, "reset"));
  Message& late = New(0, 1, kLarge, kMiB);
  Post(late);
  EXPECT_EQ(late.received, State(1, "reset"));
  Send(other);
  Run();
  EXPECT_EQ(other.received, State(1, ""));
}

TEST_F(RailsTest, RailsOfAProcessThatLeavesEndOneByOne) {
  MakeTwo();
  Message &first = New(0, 1, kLarge, kMiB), &second = New(0, 1, kLarge, kMiB), &never = New(0, 1, kLarge, kMiB);
  Send(first);
  Send(second);
  Post(first);
  Post(never);
  rails_[0].Leave(0, 1);
  Run();
  EXPECT_TRUE(nodes_[1].gone.empty());
  rails_[1].Leave(0, 1);
  Run();
  EXPECT_EQ(nodes_[1].gone[0], "it has left");
  Post(second);  // it came early
  EXPECT_EQ(second.received, State(1, ""));
  EXPECT_EQ(first.received, State(1, ""));
}

TEST_F(RailsTest, WhatIsNoNoticeOfRailsFencesTheOneThatBroughtIt) {
  MakeTwo();
  nodes_[1].rails.events(0)->OnNotice(0, "n");
  Run();
  EXPECT_EQ(nodes_[1].rails.lost().at(0).rail, 0u);
  nodes_[1].rails.events(1)->OnNotice(0, "");
  Run();
  EXPECT_EQ(nodes_[1].gone[0], "process 0 has been cut off: it sent a notice with a wrong number");
}

// Rails fail, fall silent and are restored at random, one at a time between two processes, while others carry.
class RailsFaultTest : public RailsTest, public testing::WithParamInterface<uint32_t> {};

TEST_P(RailsFaultTest, EveryMessageComesOnceAndNoticesInOrder) {
  random_.seed(GetParam());
  const uint32_t processes = 2 + random_() % 2, num_rails = 2 + random_() % 2;
  std::vector<uint32_t> shares(num_rails, RailTable::kUnits / num_rails);
  shares[0] += RailTable::kUnits - RailTable::kUnits / num_rails * num_rails;
  Make(processes, {{0, shares}});
  std::map<std::pair<uint32_t, uint32_t>, int> told;
  std::vector<size_t> unposted;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> silent;  // rail, by processes
  const auto restore = [&](uint32_t one, uint32_t other) {
    for (const Rails::Lost& lost : nodes_[one].rails.lost()) {
      if (lost.process != other) continue;
      const auto there = nodes_[other].rails.lost();
      const bool agree = std::any_of(there.begin(), there.end(), [&](const Rails::Lost& it) {
        return it.process == one && it.rail == lost.rail && it.fences == lost.fences;
      });
      if (!agree) continue;
      rails_[lost.rail].Reconnect(one, other);
      EXPECT_TRUE(nodes_[one].rails.Restore(lost, [] { return Status(); }).ok());
      Run(static_cast<int>(random_() % 10));  // one side may use it before the other
      EXPECT_TRUE(nodes_[other].rails.Restore({one, lost.rail, lost.fences}, [] { return Status(); }).ok());
    }
  };
  for (int i = 0; i < 300; ++i) {
    const uint32_t one = random_() % processes, other = (one + 1 + random_() % (processes - 1)) % processes;
    const std::pair<uint32_t, uint32_t> pair = std::minmax(one, other);
    const bool is_whole =
        silent.count(pair) == 0 && nodes_[one].rails.lost().empty() && nodes_[other].rails.lost().empty();
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: {
        Message& message = New(one, other, random_() % 2 ? kLarge : 1 + random_() % 100, kMiB);
        if (random_() % 2) {
          Post(message);
        } else {
          unposted.push_back(messages_.size() - 1);
        }
        Send(message);
        break;
      }
      case 3:
        nodes_[one].rails.Notify(other, std::to_string(told[{one, other}]++));
        break;
      case 4:
        if (!unposted.empty()) {
          std::swap(unposted[random_() % unposted.size()], unposted.back());
          Post(messages_[unposted.back()]);
          unposted.pop_back();
        }
        break;
      case 5:
        Run(static_cast<int>(random_() % 20));
        break;
      case 6:
        if (!is_whole) break;
        if (random_() % 2) {
          rails_[random_() % num_rails].Reset(one, other);
          Run();  // before the next one fails: of two rails, the word of the first goes over the second
        } else {
          silent[pair] = random_() % num_rails;
          rails_[silent[pair]].SetSilent(one, other, true);
          if (random_() % 2) rails_[silent[pair]].SetSilent(other, one, true);
        }
        break;
      case 7:
        Wait(std::chrono::milliseconds(random_() % 500));
        if (silent.count(pair) > 0) {
          rails_[silent[pair]].SetSilent(one, other, false);
          rails_[silent[pair]].SetSilent(other, one, false);
          silent.erase(pair);
          Run();
        }
        restore(pair.first, pair.second);
    }
  }
  for (const size_t index : unposted) Post(messages_[index]);
  for (const auto& [pair, rail] : silent) {
    rails_[rail].SetSilent(pair.first, pair.second, false);
    rails_[rail].SetSilent(pair.second, pair.first, false);
  }
  Wait(std::chrono::seconds(1));
  ExpectAll();
  for (const auto& [pair, count] : told) {
    std::vector<std::string> expected;
    for (int i = 0; i < count; ++i) expected.push_back(std::to_string(i));
    EXPECT_EQ(nodes_[pair.second].notices[pair.first], expected);
  }
  for (const Node& node : nodes_) EXPECT_TRUE(node.gone.empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RailsFaultTest, testing::Range(0u, 200u));

TEST(RailsTableTest, OnlyRailsThatLeadToAProcessHaveShares) {
  Rails rails(2, 3, nullptr);
  EXPECT_EQ(rails.AddProcess(1, {{0, {512, 0, 512}}}, {0, 1}).message(),
            "process 1 has a share on rail 2, which does not lead to it");
}

}  // namespace
}  // namespace jaxcomm

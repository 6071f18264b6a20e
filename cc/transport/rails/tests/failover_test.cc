// Tests rails that fail, fall silent and are restored (failover.cc, watch.cc).
#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/transport/rails/notice_kinds.h"
#include "cc/transport/rails/numbered_notices.h"
#include "cc/transport/rails/rails.h"
#include "cc/transport/rails/testing/rails_job.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

class FailoverTest : public RailsJob {};

TEST_F(FailoverTest, MessagesOfAFailedRailComeOverTheOther) {
  MakeTwo();
  for (int i = 0; i < 40; ++i) {
    nodes_[0].rails.Notify(1, std::to_string(i));
    RailsMessage& message = New(i % 2, 1 - i % 2, i % 3 ? kLarge : 10, kMiB);
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

TEST_F(FailoverTest, ASilentRailIsFencedAfter100Milliseconds) {
  MakeTwo();
  rails_[1].SetSilent(0, 1, true);
  PostAndSend(40);
  Wait(std::chrono::milliseconds(60));
  EXPECT_TRUE(std::any_of(messages_.begin(), messages_.end(),
                          [](const RailsMessage& message) { return message.received.first == 0; }));
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
  Wait(std::chrono::milliseconds(120));
  ExpectAll();
  ASSERT_EQ(nodes_[0].rails.lost().size(), 1u);
  EXPECT_EQ(nodes_[0].rails.lost()[0].rail, 1u);
  EXPECT_EQ(nodes_[0].rails.lost()[0].fences, 1u);
  EXPECT_EQ(nodes_[1].rails.lost().size(), 1u);
}

TEST_F(FailoverTest, TheFirstRailIsFencedThoughTheOtherIsIdle) {
  MakeTwo();
  rails_[0].SetSilent(0, 1, true);
  PostAndSend(New(0, 1, 10, 10));
  Wait(std::chrono::milliseconds(500));
  ExpectAll();
}

TEST_F(FailoverTest, TheLastRailIsNotFencedForItsSilence) {
  MakeTwo();
  rails_[0].Reset(0, 1);
  Run();
  rails_[1].SetSilent(0, 1, true);
  RailsMessage& message = New(0, 1, 10, 10);
  PostAndSend(message);
  Wait(std::chrono::seconds(5));
  EXPECT_EQ(message.received.first, 0);
  rails_[1].SetSilent(0, 1, false);
  Run();
  ExpectAll();
}

TEST_F(FailoverTest, AHostThatIsSilentOnAllRailsIsNotFenced) {
  MakeTwo();
  for (FakeRail& rail : rails_) rail.SetSilent(0, 1, true);
  PostAndSend(8);
  Wait(std::chrono::seconds(5));
  for (FakeRail& rail : rails_) rail.SetSilent(0, 1, false);
  Run();
  ExpectAll();
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
}

TEST_F(FailoverTest, AProcessThatDidNotLookForAWhileFencesNothingForIt) {
  MakeTwo();
  rails_[1].SetSilent(0, 1, true);
  PostAndSend(40);
  Wait(std::chrono::milliseconds(60));
  now_ += std::chrono::seconds(10);
  Wait(std::chrono::milliseconds(80));
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
}

// Even a process that exchanges nothing with a host learns that this host lacks a rail.
TEST_F(FailoverTest, AllProcessesLearnWhichHostLacksARail) {
  Make(4, {{0, {1024, 0}}, {kMiB, {768, 256}}});
  const auto set_silent = [&](bool is_silent) {
    for (const uint32_t other : {0, 1, 3}) rails_[1].SetSilent(2, other, is_silent);
  };
  set_silent(true);
  for (int i = 0; i < 40; ++i) PostAndSend(New(0, 2, kLarge, kMiB));
  Wait(std::chrono::seconds(1));
  ExpectAll();
  for (const uint32_t other : {0, 1, 3}) {
    EXPECT_EQ(nodes_[other].lacking, (std::set<std::pair<uint32_t, uint32_t>>{{2, 1}})) << other;
  }
  EXPECT_EQ(nodes_[2].lacking, (std::set<std::pair<uint32_t, uint32_t>>{{0, 1}, {1, 1}, {3, 1}}));
  set_silent(false);
  for (const uint32_t other : {0, 1, 3}) {
    rails_[1].Reconnect(other, 2);
    EXPECT_TRUE(nodes_[other].rails.Restore({2, 1, 1}, [] { return Status(); }).ok());
    EXPECT_TRUE(nodes_[2].rails.Restore({other, 1, 1}, [] { return Status(); }).ok());
  }
  Wait(std::chrono::seconds(1));
  for (const RailsNode& node : nodes_) EXPECT_TRUE(node.lacking.empty());
}

TEST_F(FailoverTest, ARestoredRailCarriesItsShareAgain) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const int carried = rails_[1].carried();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  RailsMessage& posted = New(1, 0, kLarge, kMiB);
  Post(posted);
  EXPECT_FALSE(nodes_[0].rails.Restore({1, 1, lost.fences + 1}, [] { return Status(); }).ok());
  EXPECT_FALSE(nodes_[0].rails.Restore({1, 0, 0}, [] { return Status(); }).ok());
  const Status full(Code::kInternal, "no");
  EXPECT_EQ(nodes_[0].rails.Restore(lost, [&] { return full; }).message(), "no");
  EXPECT_EQ(nodes_[0].rails.lost().size(), 1u);
  RestoreSecondRail();
  EXPECT_TRUE(nodes_[0].rails.lost().empty());
  Send(posted);
  PostAndSend(40);
  Run();
  ExpectAll();
  EXPECT_GE(rails_[1].carried() - carried, 10);
}

TEST_F(FailoverTest, SharesAreThoseInForceAndTheirHistoryIsKept) {
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
  RestoreSecondRail();
  EXPECT_EQ(shares(), (std::vector<uint32_t>{768, 256}));
  std::ostringstream history;
  nodes_[0].rails.states()[1].history.WriteJson(history);
  const std::string json = history.str();
  EXPECT_LT(json.find("\"is_open\":false,\"why\":\"reset\""), json.find("\"is_open\":true")) << json;
}

TEST_F(FailoverTest, ARailThatOneSideAloneHasTakenBackIsLostAgainOnBoth) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  rails_[1].Reconnect(0, 1);
  EXPECT_TRUE(nodes_[0].rails.Restore(lost, [] { return Status(); }).ok());
  PostAndSend(New(0, 1, kLarge, kMiB));
  rails_[1].Reset(0, 1);
  Run();
  ExpectAll();
  for (const RailsNode& node : nodes_) {
    ASSERT_EQ(node.rails.lost().size(), 1u);
    EXPECT_EQ(node.rails.lost()[0].fences, lost.fences + 1);
  }
}

TEST_F(FailoverTest, AProcessIsGoneThatFailsWhileARailToItIsNotRestored) {
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
  EXPECT_TRUE(nodes_[0].left.empty());
}

TEST_F(FailoverTest, MessagesWithoutARailGoOverTheRestoredOne) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  const Rails::Lost lost = nodes_[0].rails.lost().at(0);
  rails_[1].Reconnect(0, 1);
  RailsMessage &before = New(0, 1, kLarge, kMiB), &meanwhile = New(0, 1, kLarge, kMiB);
  PostAndSend(before);
  const auto fail = [&] {
    rails_[0].Reset(0, 1);
    PostAndSend(meanwhile);
    nodes_[0].rails.Notify(1, "here");
    return Status();
  };
  const auto there = [&] { return nodes_[0].rails.Restore(lost, fail); };
  EXPECT_TRUE(nodes_[1].rails.Restore({0, 1, lost.fences}, there).ok());
  Run();
  ExpectAll();
  EXPECT_EQ(nodes_[1].notices[0], std::vector<std::string>{"here"});
}

TEST_F(FailoverTest, ARailThatIsRestoredDuringAPostHasItOnce) {
  MakeTwo();
  rails_[0].BeforePost([&] {
    rails_[1].Reset(0, 1);
    Run();
    RestoreSecondRail();
  });
  PostAndSend(New(0, 1, kLarge, kMiB));
  Run();
  ExpectAll();
}

TEST_F(FailoverTest, ARailIsNotRestoredDuringItsPost) {
  MakeTwo();
  rails_[1].BeforePost([&] {
    rails_[1].Reset(0, 1);
    Run();
    EXPECT_TRUE(nodes_[1].rails.lost().empty());
  });
  RailsMessage& message = New(0, 1, kLarge, kMiB);
  Post(message);
  EXPECT_EQ(nodes_[1].rails.lost().size(), 1u);
}

TEST_F(FailoverTest, NothingIsSentAgainWhileTheRailThatHadItIsFenced) {
  Make(2, {{0, {342, 341, 341}}});
  PostAndSend(New(0, 1, kLarge, 0));
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

TEST_F(FailoverTest, AProcessIsGoneOnceAllItsRailsHaveFailed) {
  Make(3, {{0, {1024, 0}}, {kMiB, {768, 256}}});
  RailsMessage &posted = New(0, 1, kLarge, kMiB), &sent = New(1, 0, kLarge, kMiB), &other = New(2, 1, kLarge, kMiB);
  Post(posted);
  Send(sent);
  Post(other);
  rails_[0].Reset(0, 1);
  Run();
  EXPECT_TRUE(nodes_[1].gone.empty());
  rails_[1].Reset(0, 1);
  EXPECT_EQ(nodes_[1].gone[0], "reset");
  EXPECT_EQ(posted.received, CallbackState(1, "reset"));
  EXPECT_EQ(sent.sent, CallbackState(1, "reset"));
  RailsMessage& late = New(0, 1, kLarge, kMiB);
  Post(late);
  EXPECT_EQ(late.received, CallbackState(1, "reset"));
  Send(other);
  Run();
  EXPECT_EQ(other.received, CallbackState(1, ""));
}

TEST_F(FailoverTest, RailsOfAProcessThatLeavesEndOneByOne) {
  MakeTwo();
  RailsMessage &first = New(0, 1, kLarge, kMiB), &second = New(0, 1, kLarge, kMiB), &never = New(0, 1, kLarge, kMiB);
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
  EXPECT_EQ(nodes_[1].left.count(0), 1u);
  Post(second);  // the message arrived early
  EXPECT_EQ(second.received, CallbackState(1, ""));
  EXPECT_EQ(first.received, CallbackState(1, ""));
}

TEST_F(FailoverTest, AProcessWhoseLastRailFailsHasNotLeft) {
  MakeTwo();
  rails_[0].Leave(0, 1);
  Run();
  rails_[1].Reset(0, 1);
  Run();
  EXPECT_EQ(nodes_[1].gone[0], "reset");
  EXPECT_TRUE(nodes_[1].left.empty());
}

TEST_F(FailoverTest, AProcessThatLeavesByItsLastRailHasLeft) {
  MakeTwo();
  rails_[1].Reset(0, 1);
  Run();
  rails_[0].Leave(0, 1);
  Run();
  EXPECT_EQ(nodes_[1].gone[0], "it has left");
  EXPECT_EQ(nodes_[1].left.count(0), 1u);
}

TEST_F(FailoverTest, AProcessThatIsCutOffIsNotConnectedAgain) {
  MakeTwo();
  rails_[0].Reset(0, 1);
  Run();
  const Rails::Lost lost = nodes_[1].rails.lost().at(0);
  RailsMessage& message = New(0, 1, 10, kMiB);
  message.memory.resize(11);
  PostAndSend(message);
  bool was_asked = false;
  rails_[1].BeforeFence([&] {
    was_asked = true;
    EXPECT_FALSE(nodes_[1].rails.Restore(lost, [] { return Status(); }).ok());
    nodes_[1].rails.Notify(0, "to nobody");
  });
  Run();
  EXPECT_TRUE(was_asked);
  EXPECT_EQ(nodes_[1].gone.count(0), 1u);
  EXPECT_TRUE(nodes_[0].notices.empty());
}

TEST_F(FailoverTest, NoNoticeComesFromAProcessThatIsGone) {
  MakeTwo();
  for (FakeRail& rail : rails_) rail.Reset(0, 1);
  NumberedNotices its;
  nodes_[1].rails.events(0)->OnNotice(0, *its.Add(kNotice, std::string(NumberedNotices::kHeaderBytes, 'x')));
  EXPECT_TRUE(nodes_[1].notices.empty());
}

TEST_F(FailoverTest, CallsCancelledForAnEndedProcessGetNoCallback) {
  MakeTwo();
  std::deque<RailsMessage*> all;
  for (uint32_t call : {1, 2, 3}) {
    Post(*all.emplace_back(&New(0, 1, kLarge, kMiB, call)));
    Send(*all.emplace_back(&New(1, 0, kLarge, kMiB, call)));
  }
  nodes_[1].on_gone = [&] { nodes_[1].rails.Cancel(all[2]->id.call); };
  for (FakeRail& rail : rails_) rail.Reset(0, 1);
  for (const size_t i : {0, 4}) {
    EXPECT_EQ(all[i]->received, CallbackState(1, "reset"));
    EXPECT_EQ(all[i + 1]->sent, CallbackState(1, "reset"));
  }
  EXPECT_EQ(all[2]->received.first, 0);
  EXPECT_EQ(all[3]->sent.first, 0);
}

TEST_F(FailoverTest, AnInvalidNoticeFencesItsRail) {
  MakeTwo();
  nodes_[1].rails.events(0)->OnNotice(0, "n");
  Run();
  EXPECT_EQ(nodes_[1].rails.lost().at(0).rail, 0u);
  nodes_[1].rails.events(1)->OnNotice(0, "");
  Run();
  EXPECT_EQ(nodes_[1].gone[0], "process 0 has been cut off: it sent a notice with a wrong number");
}

// Rails fail, fall silent and are restored at random. At most one rail between two processes is lost at a time, and the
// other rails work.
class RailsFaultTest : public RailsJob, public testing::WithParamInterface<uint32_t> {};

TEST_P(RailsFaultTest, EveryMessageComesOnceAndNoticesInOrder) {
  random_.seed(GetParam());
  const uint32_t processes = 2 + random_() % 2, num_rails = 2 + random_() % 2;
  std::vector<uint32_t> shares(num_rails, RailTable::kUnits / num_rails);
  shares[0] += RailTable::kUnits - RailTable::kUnits / num_rails * num_rails;
  Make(processes, {{0, shares}});
  std::map<std::pair<uint32_t, uint32_t>, int> sent;
  std::vector<size_t> unposted;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> silent;  // the silent rail, by pair of processes
  const auto restore = [&](uint32_t one, uint32_t other) {
    for (const Rails::Lost& lost : nodes_[one].rails.lost()) {
      if (lost.process != other) continue;
      const auto there = nodes_[other].rails.lost();
      const bool agree = std::any_of(there.begin(), there.end(), [&](const Rails::Lost& other) {
        return other.process == one && other.rail == lost.rail && other.fences == lost.fences;
      });
      if (!agree) continue;
      rails_[lost.rail].Reconnect(one, other);
      EXPECT_TRUE(nodes_[one].rails.Restore(lost, [] { return Status(); }).ok());
      Run(static_cast<int>(random_() % 10));  // one side may use the rail before the other side restores it
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
        RailsMessage& message = New(one, other, random_() % 2 ? kLarge : 1 + random_() % 100, kMiB);
        if (random_() % 2) {
          Post(message);
        } else {
          unposted.push_back(messages_.size() - 1);
        }
        Send(message);
        break;
      }
      case 3:
        nodes_[one].rails.Notify(other, std::to_string(sent[{one, other}]++));
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
          Run();  // delivers the report of the failure to the other side before the rail that carries it can fail
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
  for (const auto& [pair, count] : sent) {
    std::vector<std::string> expected;
    for (int i = 0; i < count; ++i) expected.push_back(std::to_string(i));
    EXPECT_EQ(nodes_[pair.second].notices[pair.first], expected);
  }
  for (const RailsNode& node : nodes_) EXPECT_TRUE(node.gone.empty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RailsFaultTest, testing::Range(0u, 200u));

}  // namespace
}  // namespace jaxcomm

// A job whose processes are connected by rails, and the messages of the job. All processes run in the thread of the
// test.
//
//   class FailoverTest : public RailsJob {};
//   MakeTwo();
//   RailsMessage& message = New(0, 1, kLarge, kMiB);
//   Post(message);
//   Send(message);
//   Run();         // delivers notices and messages
//   ExpectAll();   // every message arrived once and intact
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/transport/rails/rails.h"
#include "cc/transport/rails/testing/fake_rail.h"
#include "gtest/gtest.h"

namespace jaxcomm {

using Bytes = std::vector<std::byte>;
using CallbackState = std::pair<int, std::string>;  // number of times that a callback ran, and its last error

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLarge = Rails::kMaxSmall + 1;

inline Bytes Pattern(int64_t size, uint32_t seed) {
  Bytes bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i + i / 251);
  return bytes;
}

// A process, which records its events.
class RailsNode : public Transport::Events {
 public:
  RailsNode(uint32_t processes, uint32_t num_rails) : rails(processes, num_rails, this) {}

  void OnNotice(uint32_t process, std::string_view notice) override {
    notices[process].emplace_back(notice);
    if (on_notice) on_notice();
  }
  void OnPeerGone(uint32_t process, const Status& why) override {
    EXPECT_TRUE(gone.emplace(process, why.message()).second) << "gone twice";
    if (on_gone) on_gone();
  }
  void OnPeerLeft(uint32_t process, const Status& why) override {
    left.insert(process);
    OnPeerGone(process, why);
  }
  void OnRail(uint32_t process, uint32_t rail, bool is_open) override {
    is_open ? lacking.erase({process, rail}) : lacking.emplace(process, rail).second;
  }

  Rails rails;
  std::map<uint32_t, std::vector<std::string>> notices;
  std::map<uint32_t, std::string> gone;
  std::function<void()> on_notice, on_gone;
  std::set<uint32_t> left;                          // processes that have left
  std::set<std::pair<uint32_t, uint32_t>> lacking;  // pairs of a process and a fenced rail to it
};

// A message between two processes, and the states of its callbacks.
struct RailsMessage {
  RailsMessage(uint32_t from, uint32_t to, const MessageId& id, int64_t size)
      : from(from), to(to), id(id), bytes(Pattern(size, id.segment)), memory(static_cast<size_t>(size)) {}

  uint32_t from, to;
  MessageId id;
  Bytes bytes, memory;
  CallbackState sent{0, ""}, received{0, ""};
};

// Processes that are connected by rails. Each rail of MakeTwo carries a part of each call of at least 1 MiB.
class RailsJob : public testing::Test {
 protected:
  void Make(uint32_t processes, const std::vector<RailTable::Range>& shares) {
    const auto num_rails = static_cast<uint32_t>(shares[0].shares.size());
    for (uint32_t rail = 0; rail < num_rails; ++rail) rails_.emplace_back(processes);
    std::vector<uint32_t> all(num_rails);
    for (uint32_t rail = 0; rail < num_rails; ++rail) all[rail] = rail;
    for (uint32_t i = 0; i < processes; ++i) {
      RailsNode& node = nodes_.emplace_back(processes, num_rails);
      std::vector<RailTransport*> transports;
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
  void MakeTwo() { Make(2, {{0, {1024, 0}}, {kMiB, {768, 256}}}); }

  RailsMessage& New(uint32_t from, uint32_t to, int64_t size, int64_t call_bytes, uint32_t call = 1) {
    const auto segment = static_cast<uint32_t>(messages_.size());
    return messages_.emplace_back(from, to, MessageId{{1, call, 3, 4}, from, to, 0, segment, call_bytes}, size);
  }
  void Post(RailsMessage& message) {
    nodes_[message.to].rails.Post(message.from, message.id,
                                  {{message.memory.data(), static_cast<int64_t>(message.memory.size()), 0}}, false,
                                  [&message](const Status& status, std::shared_ptr<const std::byte>) {
                                    ++message.received.first;
                                    message.received.second = status.message();
                                  });
  }
  void Send(RailsMessage& message) {
    nodes_[message.from].rails.Send({{message.to, message.id}},
                                    {{message.bytes.data(), static_cast<int64_t>(message.bytes.size()), 0}},
                                    [&message](const Status& status) {
                                      ++message.sent.first;
                                      message.sent.second = status.message();
                                    });
  }
  void PostAndSend(RailsMessage& message) {
    Post(message);
    Send(message);
  }
  // Posts and sends large messages from process 0 to process 1.
  void PostAndSend(int count) {
    for (int i = 0; i < count; ++i) PostAndSend(New(0, 1, kLarge, kMiB));
  }
  // Reconnects rail 1 between processes 0 and 1, and restores it on both sides.
  void RestoreSecondRail() {
    const uint32_t fences = nodes_[0].rails.lost().at(0).fences;
    rails_[1].Reconnect(0, 1);
    for (uint32_t process : {0, 1}) {
      EXPECT_TRUE(nodes_[process].rails.Restore({1 - process, 1, fences}, [] { return Status(); }).ok());
    }
  }
  // Delivers at most `steps` notices and messages. Delivers all of them by default.
  void Run(int steps = 1 << 30) {
    for (bool some = true; some && steps > 0;) {
      some = false;
      const size_t first = random_() % rails_.size();
      for (size_t i = 0; i < rails_.size() && !some; ++i) some = rails_[(first + i) % rails_.size()].Step(random_);
      --steps;
    }
  }
  // Lets time pass. Each process looks for silent rails meanwhile, as its thread would.
  void Wait(std::chrono::milliseconds time) {
    for (const auto end = now_ + time; now_ < end; now_ += std::chrono::milliseconds(20)) {
      for (RailsNode& node : nodes_) node.rails.Look(now_);
      Run();
    }
  }
  void ExpectAll() {
    const CallbackState once{1, ""};
    for (const RailsMessage& message : messages_) {
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
  std::deque<RailsNode> nodes_;
  std::deque<RailsMessage> messages_;
};

}  // namespace jaxcomm

// Traffic between the processes (recorded_events.h) of a test. Every transport over sockets must carry this traffic.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/testing/recorded_events.h"
#include "cc/transport/transport.h"
#include "gtest/gtest.h"

namespace jaxcomm {

// Exchanges notices and messages between processes 0, 1, …. The messages have random sizes and a random order.
template <typename Node>
void ExchangeMany(const std::vector<Node*>& nodes, unsigned seed, uint32_t messages) {
  struct Transfer {
    uint32_t from, to, index;
    Bytes data, into;
  };
  const auto processes = static_cast<uint32_t>(nodes.size());
  std::mt19937 random(seed);
  std::vector<Transfer> transfers;
  std::vector<int> counts(processes), sends(processes);
  for (uint32_t index = 0; index < messages; ++index) {
    const uint32_t from = random() % processes, to = (from + 1 + random() % (processes - 1)) % processes;
    const size_t size = random() % 10 ? random() % 10000 : random() % (Transport::kMaxMessage + 1);
    transfers.push_back({from, to, index, Pattern(size, index), Bytes(size)});
    ++counts[to];
    ++sends[from];
  }
  const auto shuffled = [&] {
    std::vector<Transfer*> order;
    for (Transfer& transfer : transfers) order.push_back(&transfer);
    std::shuffle(order.begin(), order.end(), random);
    return order;
  };
  std::thread receivers([&nodes, order = shuffled()] {
    for (Transfer* const t : order) {
      nodes[t->to]->transport->Post(t->from, Id(1, t->from, t->to, t->index), All(t->into), t->index % 2 == 0,
                                    [t, done = nodes[t->to]->OnReceived()](const Status& status, auto view) {
                                      if (view) std::copy(view.get(), view.get() + t->into.size(), t->into.data());
                                      done(status, nullptr);
                                    });
    }
  });
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> notices;  // number of notices, by sender and receiver
  for (Transfer* const t : shuffled()) {
    Node& sender = *nodes[t->from];
    sender.transport->Send({{t->to, Id(1, t->from, t->to, t->index)}}, All(std::as_const(t->data)), sender.OnSent());
    sender.transport->Notify(t->to, std::to_string(notices[{t->from, t->to}]++));
    if (t->index % 5 == 0) sender.transport->Flush();
  }
  for (Node* const node : nodes) node->transport->Flush();
  receivers.join();
  for (uint32_t i = 0; i < processes; ++i) {
    nodes[i]->Await([&] { return nodes[i]->received == counts[i] && nodes[i]->sent == sends[i]; });
    EXPECT_EQ(nodes[i]->failed, 0);
  }
  for (const auto& [ends, count] : notices) {
    const std::vector<std::string> came = nodes[ends.second]->AwaitNotices(ends.first, count);
    for (uint32_t n = 0; n < count; ++n) ASSERT_EQ(came[n], std::to_string(n));
  }
  for (const Transfer& transfer : transfers) EXPECT_TRUE(Same(transfer.into, transfer.data));
}

// Ends process 0 while its message is in flight, and checks that the message arrives. `connect` connects processes 0
// and 1.
template <typename Node, typename ConnectNodes>
void LeaveBehindAMessage(const ConnectNodes& connect) {
  Node b(1);
  Bytes into(Transport::kMaxMessage);
  const Bytes data = Pattern(into.size(), 1);
  const auto begin = std::chrono::steady_clock::now();
  {
    Node a(0);
    connect(a, b);
    b.transport->Notify(0, "which nobody reads any more");
    b.transport->Flush();
    a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(data), a.OnSent());
  }
  if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(2)) {
    GTEST_SKIP() << "the machine was too slow: an ending process waits at most 2 s";
  }
  EXPECT_EQ(b.AwaitGone(0), "process 0 has left");
  b.transport->Post(0, Id(1, 0, 1, 0), All(into), false, b.OnReceived());
  b.Await([&] { return b.received == 1; });
  EXPECT_TRUE(Same(into, data));
  b.transport->Post(0, Id(1, 0, 1, 1), All(into), false, b.OnReceived());
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(data), b.OnSent());
  b.Await([&] { return b.failed == 2; });
  EXPECT_EQ(b.last_error, "process 0 has left");
}

// Sends one message. Receives the message as the executor does: with the same functions, in the same order. Returns
// whether the message's callback ran on this thread.
template <typename Node>
bool ReceiveWithHelp(Node& sender, Node& receiver, uint32_t index, std::chrono::nanoseconds limit) {
  const Bytes sent = Pattern(1000, index);
  Bytes memory(sent.size());
  std::promise<std::thread::id> taker;
  std::future<std::thread::id> taken = taker.get_future();
  const MessageId id = Id(1, sender.process, receiver.process, index);
  receiver.transport->Post(sender.process, id, All(memory), false, [&](const Status& status, auto) {
    EXPECT_TRUE(status.ok()) << status.message();
    receiver.transport->EndExpecting();
    taker.set_value(std::this_thread::get_id());
  });
  sender.transport->Send({{receiver.process, id}}, All(sent), [](const Status&) {});
  sender.transport->Flush();
  receiver.transport->Help(limit, /*yields=*/index % 2 == 1,
                           [&] { return taken.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  receiver.transport->Expect();
  const bool helped = taken.get() == std::this_thread::get_id();
  EXPECT_TRUE(Same(memory, sent));
  return helped;
}

// Sends more bytes than may arrive before their Posts. The messages beyond this limit, and the notice after these
// messages, arrive only after Posts have made room.
template <typename Node>
void TakeMoreThanMayBeEarly(Node& a, Node& b) {
  constexpr uint32_t kEarly = Transport::kMaxEarlyBytes / Transport::kMaxMessage, kMessages = kEarly + 16;
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  for (uint32_t i = 0; i < kMessages; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Notify(1, "last");
  a.transport->Flush();
  a.Await([&] { return a.sent >= static_cast<int>(kEarly) - 1; });
  for (uint32_t i = 0; i < kMessages; ++i) {
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false, b.OnReceived());
    b.Await([&] { return b.received == static_cast<int>(i) + 1; });
    ASSERT_TRUE(Same(into, data));
  }
  EXPECT_EQ(b.AwaitNotices(0, 1)[0], "last");
  a.Await([&] { return a.sent == kMessages; });  // until then the transport may read `data`
}

// Posts the messages of rank 0, each in the callback of the previous message. Returns when all messages have arrived.
template <typename Node>
void PostFromCallbacks(Node& b, Bytes& into, uint32_t messages) {
  std::promise<void> done;
  std::function<void(uint32_t)> post = [&](uint32_t i) {
    if (i == messages) return done.set_value();
    b.transport->Post(0, Id(1, 0, 1, i), All(into), false,
                      [&post, i](const Status&, std::shared_ptr<const std::byte>) { post(i + 1); });
  };
  post(0);
  done.get_future().wait();
}

// All messages arrive before their Posts. If Post ran callbacks directly, the Posts would recurse once per message.
template <typename Node>
void PostEarlyFromCallbacks(Node& a, Node& b, uint32_t steps) {
  Bytes into(8);
  const Bytes data(8);
  for (uint32_t i = 0; i < steps; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Notify(1, "all");
  a.transport->Flush();
  b.AwaitNotices(0, 1);
  PostFromCallbacks(b, into, steps);
}

// Runs one side of several calls. Every third call completes. Each side cancels the other calls at a random moment.
template <typename Node>
void RunAndCancel(Node& node, uint32_t peer, unsigned seed) {
  constexpr uint32_t kCalls = 60, kMessages = 6;
  std::mt19937 random(seed);
  for (uint32_t call = 0; call < kCalls; ++call) {
    const bool whole = call % 3 == 2;
    std::vector<Bytes> out, in;
    for (uint32_t i = 0; i < kMessages; ++i) {
      out.push_back(Pattern(i % 2 ? 300 : 100000, call + i));
      in.emplace_back(out[i].size());
    }
    struct Ends {  // shared, because a callback that began before the cancel may still use it
      std::mutex mutex;
      std::condition_variable changed;
      uint32_t count = 0;
    };
    auto ends = std::make_shared<Ends>();
    const auto end = [ends](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      std::lock_guard<std::mutex> lock(ends->mutex);
      ++ends->count;
      ends->changed.notify_all();
    };
    for (uint32_t i = 0; i < kMessages; ++i) {
      node.transport->Post(peer, Id(call, peer, node.process, i), All(in[i]), false,
                           [end](const Status& status, std::shared_ptr<const std::byte>) { end(status); });
      node.transport->Send({{peer, Id(call, node.process, peer, i)}}, All(std::as_const(out[i])), end);
      if (random() % 3 == 0) node.transport->Flush();
    }
    node.transport->Flush();
    if (whole) {
      std::unique_lock<std::mutex> lock(ends->mutex);
      ends->changed.wait(lock, [&] { return ends->count == 2 * kMessages; });
      for (uint32_t i = 0; i < kMessages; ++i) EXPECT_TRUE(Same(in[i], out[i]));
    } else {
      for (auto rounds = random() % 20; rounds > 0; --rounds) std::this_thread::yield();
      node.transport->Cancel(Id(call, 0, 0, 0).call);  // afterwards the memory is freed
    }
  }
}

template <typename Node>
void CancelInTraffic(Node& a, Node& b) {
  std::thread other([&] { RunAndCancel(b, 0, 2); });
  RunAndCancel(a, 1, 1);
  other.join();
}

}  // namespace jaxcomm

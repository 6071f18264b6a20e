// Calls that are given up: no byte of them is stored or sent any more.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(CancelTest, AfterCancelNoByteIsStored) {
  Node a(0);
  Raw raw(a, 1);
  const size_t half = Transport::kMaxMessage / 2;
  Bytes into(2 * half);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
  raw.Send({FrameType::kMessage, static_cast<uint32_t>(2 * half), Id(1, 1, 0, 0)}, Pattern(half, 1));
  a.transport->Cancel(Id(1, 1, 0, 0).call);
  const Bytes then = into;
  into = then;  // a race, to a sanitizer, if the memory were still somebody's
  raw.Send(Pattern(half, 2));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 1)}, Bytes(10, std::byte{1}));
  raw.Send({FrameType::kMessage, 10, Id(1, 1, 0, 2)}, Bytes(10, std::byte{1}));
  a.transport->Post(1, Id(1, 1, 0, 2), All(into), false, a.OnReceived());
  raw.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(1, 1);
  EXPECT_EQ(into, then);
  EXPECT_EQ(a.received + a.failed, 0);
}

TEST(CancelTest, AfterCancelNoByteIsSentFromTheCaller) {
  Node a(0);
  Raw raw(a, 1);
  constexpr uint32_t kMessages = 50;  // more than the kernel takes
  Bytes data = Pattern(Transport::kMaxMessage, 1);
  const Bytes original = data;
  for (uint32_t i = 0; i < kMessages; ++i) {
    a.transport->Send({{1, Id(1, 0, 1, i)}}, All(std::as_const(data)), a.OnSent());
  }
  a.transport->Flush();
  a.transport->Cancel(Id(1, 0, 0, 0).call);
  data.assign(data.size(), std::byte{9});
  a.transport->Notify(1, "next");
  a.transport->Flush();
  for (uint32_t i = 0;; ++i) {
    const Result<Header> header = DecodeHeader(raw.Read(kHeaderBytes).data());
    ASSERT_TRUE(header.ok());
    ASSERT_LT(i, kMessages);
    if (header.value().type == FrameType::kNotice) break;
    EXPECT_EQ(header.value().id.index, i);
    EXPECT_TRUE(Same(raw.Read(header.value().bytes), original));
  }
}

// One side of calls that one or both sides give up at any moment; every third call is carried through.
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
    struct Ends {  // stays as long as a callback that has begun before the cancel
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
      node.transport->Cancel(Id(call, 0, 0, 0).call);  // then the memory is given back
    }
  }
}

TEST(CancelTest, CancelsInTheMidstOfTraffic) {
  Node a(0), b(1);
  Connect(a, b);
  std::thread other([&] { RunAndCancel(b, 0, 2); });
  RunAndCancel(a, 1, 1);
  other.join();
}

}  // namespace
}  // namespace jaxcomm

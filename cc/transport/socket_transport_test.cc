// Tests that every kind of transport over sockets must pass.
#include "cc/transport/socket_transport.h"

#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/testing/no_threads.h"
#include "cc/transport/testing/drop_packets.h"
#include "cc/transport/testing/socket_kinds.h"
#include "cc/transport/testing/traffic.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr std::chrono::milliseconds kShort(600);

template <typename Kind>
class SocketTransportTest : public testing::Test {
 protected:
  using Node = typename Kind::Node;
  using Raw = typename Kind::Raw;

  void SetUp() override {
    if (!Kind::IsAvailable()) GTEST_SKIP() << "this machine lacks libcrypto, libfabric, or this provider of libfabric";
  }
};

TYPED_TEST_SUITE(SocketTransportTest, SocketKinds);

TYPED_TEST(SocketTransportTest, ManyMessagesInAnyOrder) {
  for (const unsigned seed : {1u, 2u}) {
    typename TestFixture::Node a(0), b(1), c(2);
    Connect(a, b);
    Connect(a, c);
    Connect(b, c);
    ExchangeMany<typename TestFixture::Node>({&a, &b, &c}, seed, 300);
  }
}

TYPED_TEST(SocketTransportTest, OneMessageForSeveral) {
  typename TestFixture::Node a(0), b(1), c(2);
  Connect(a, b);
  Connect(a, c);
  for (const size_t size : {size_t{100}, size_t{Transport::kMaxMessage}}) {
    const Bytes data = Pattern(size, 1);
    Bytes at_b(size), at_c(size);
    const auto call = static_cast<uint32_t>(size);
    b.transport->Post(0, Id(call, 0, 1, 0), All(at_b), false, b.OnReceived());
    c.transport->Post(0, Id(call, 0, 2, 0), All(at_c), false, c.OnReceived());
    a.sent = b.received = c.received = 0;
    a.transport->Send({{1, Id(call, 0, 1, 0)}, {2, Id(call, 0, 2, 0)}}, All(data), a.OnSent());
    a.transport->Flush();
    b.Await([&] { return b.received == 1; });
    c.Await([&] { return c.received == 1; });
    a.Await([&] { return a.sent == 1; });
    EXPECT_TRUE(Same(at_b, data));
    EXPECT_TRUE(Same(at_c, data));
  }
}

TYPED_TEST(SocketTransportTest, SpansWithGapsAndManySmallOnes) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  const Bytes data = Pattern(200000, 3);
  Bytes into(data.size());
  std::vector<ConstSpan> out;
  std::vector<Span> in;
  for (int64_t at = 0; at + 100 <= 200000; at += 100) {
    out.push_back({data.data() + at, 60, at});
    in.push_back({into.data() + at, 60, at});
  }
  b.transport->Post(0, Id(1, 0, 1, 0), in, true, b.OnReceived());
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, out, a.OnSent());
  a.transport->Flush();
  b.Await([&] { return b.received == 1; });
  a.Await([&] { return a.sent == 1; });
  for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(into[i], i % 100 < 60 ? data[i] : std::byte{0}) << i;
}

TYPED_TEST(SocketTransportTest, SoonAfterACallAHelpingThreadTakesItsMessages) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; !ReceiveWithHelp(a, b, index, std::chrono::seconds(60)); ++index) {
  }
}

TYPED_TEST(SocketTransportTest, AfterHelpThatThrowsTheThreadGoesOn) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  bool has_thrown = false;
  for (uint32_t index = 0; !has_thrown; ++index) {  // repeats until Help polls before the progress thread does
    ReceiveWithHelp(a, b, index, std::chrono::nanoseconds(0));
    try {
      b.transport->Help(std::chrono::milliseconds(1), /*yields=*/false, [&]() -> bool {
        has_thrown = true;
        throw std::bad_alloc();
      });
    } catch (const std::bad_alloc&) {
    }
  }
  a.transport->Notify(1, "a");
  a.transport->Flush();
  EXPECT_EQ(b.AwaitNotices(0, 1), std::vector<std::string>{"a"});
}

TYPED_TEST(SocketTransportTest, AfterHelpTheThreadGoesOn) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  for (uint32_t index = 0; index < 100; ++index) ReceiveWithHelp(a, b, index, std::chrono::nanoseconds(0));
}

TYPED_TEST(SocketTransportTest, AnEarlyLargeMessageIsReported) {
  typename TestFixture::Node a(0), b(1);
  b.transport->OnEarly(b.OnEarly());
  Connect(a, b);
  const Bytes small = Pattern(Transport::kMaxSmall, 1), large = Pattern(Transport::kMaxSmall + 1, 2);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(small), a.OnSent());
  a.transport->Send({{1, Id(1, 0, 1, 1)}}, All(large), a.OnSent());
  a.transport->Flush();
  b.Await([&] { return !b.early.empty(); });
  EXPECT_EQ(b.early, std::vector<int64_t>{Transport::kMaxSmall + 1});
  Bytes into(large.size());
  b.transport->Post(0, Id(1, 0, 1, 1), All(into), false, b.OnReceived());
  b.Await([&] { return b.received == 1; });
  EXPECT_TRUE(Same(into, large));
  a.Await([&] { return a.sent == 2; });
}

TYPED_TEST(SocketTransportTest, MoreThanMayBeEarlyWaitsForItsPost) {
  typename TestFixture::Node a(0), b(1);
  TypeParam::ConnectFast(a, b);
  TakeMoreThanMayBeEarly(a, b);
}

TYPED_TEST(SocketTransportTest, MoreThanMayBeEarlyIsReadOnWhenACallbackPosts) {
  constexpr uint32_t kEarly = Transport::kMaxEarlyBytes / Transport::kMaxMessage, kMessages = kEarly + 6;
  typename TestFixture::Node a(0), b(1);
  TypeParam::ConnectFast(a, b);
  const Bytes data = Pattern(Transport::kMaxMessage, 1);
  Bytes into(data.size());
  for (uint32_t i = 0; i < kMessages; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
  a.transport->Flush();
  a.Await([&] { return a.sent >= static_cast<int>(kEarly) - 1; });
  PostFromCallbacks(b, into, kMessages);
  EXPECT_TRUE(Same(into, data));
  a.Await([&] { return a.sent == kMessages; });  // until then the transport may read `data`
}

TYPED_TEST(SocketTransportTest, CallbacksMayCallTheTransport) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  PostEarlyFromCallbacks(a, b, /*steps=*/3000);
}

TYPED_TEST(SocketTransportTest, CancelsInTheMidstOfTraffic) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  CancelInTraffic(a, b);
}

TYPED_TEST(SocketTransportTest, AWithdrawnPostIsNotUsed) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  Bytes withdrawn(10), into(10);
  const Bytes bytes = Pattern(10, 7);
  a.transport->Post(1, Id(1, 1, 0, 0), All(withdrawn), false, a.OnReceived());
  a.transport->Withdraw(1, Id(1, 1, 0, 0));
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(bytes), b.OnSent());
  b.transport->Notify(0, "behind it");
  b.transport->Flush();
  a.AwaitNotices(1, 1);
  EXPECT_EQ(a.received, 0);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  a.Await([&] { return a.received == 1; });
  EXPECT_EQ(into, bytes);
  EXPECT_EQ(withdrawn, Bytes(10));
}

TYPED_TEST(SocketTransportTest, AProcessThatLeavesStillDeliversItsMessages) {
  LeaveBehindAMessage<typename TestFixture::Node>([](auto& a, auto& b) { Connect(a, b); });
}

TYPED_TEST(SocketTransportTest, BothSidesLearnThatAProcessHasLeft) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  a.transport->Notify(1, "last");
  a.transport->Leave();
  EXPECT_EQ(a.AwaitGone(1), "this process has left the job");
  EXPECT_EQ(b.AwaitGone(0), "process 0 has left");
  EXPECT_EQ(b.AwaitNotices(0, 1)[0], "last");
}

TYPED_TEST(SocketTransportTest, AHostThatAnswersNothingIsGone) {
  typename TestFixture::Node a(0, "", kShort);
  typename TestFixture::Raw raw(a, 1);
  DropPackets(raw.connection());
  const auto begin = std::chrono::steady_clock::now();
  a.transport->Notify(1, "is anybody there");
  a.transport->Flush();
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: its host has not answered for 0.6 s");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
}

TYPED_TEST(SocketTransportTest, ASilentHostIsGoneThoughNothingIsSentToIt) {
  typename TestFixture::Node a(0, "eth1", kShort);
  typename TestFixture::Raw raw(a, 1);
  DropPackets(raw.connection());
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone on rail eth1 to process 0: its host has not answered for 0.6 s");
}

TYPED_TEST(SocketTransportTest, InvalidPeersSpansAndNoticesAreErrors) {
  typename TestFixture::Node a(0), b(1);
  Connect(a, b);
  const auto [one, other] = TypeParam::PathsBetween(a, b);
  EXPECT_EQ(a.transport->AddPeer(1, one).message(), "process 1 cannot be connected: it has been connected already");
  EXPECT_EQ(a.transport->AddPeer(0, other).message(), "process 0 cannot be connected: it is this process");
  Bytes data(Transport::kMaxMessage + 1);
  a.transport->Send({{1, Id(1, 0, 1, 0)}}, All(std::as_const(data)), a.OnSent());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(
      a.last_error,
      "a message has a span of 262145 bytes at 0 after one that ends at 0; spans must ascend and end before 256 KiB");
  a.transport->Post(1, Id(1, 1, 0, 0), {{data.data(), 2, 4}, {data.data(), 2, 5}}, false, a.OnReceived());
  a.Await([&] { return a.failed == 2; });
  a.transport->Notify(1, std::string(Transport::kMaxNotice + 1, 'x'));
  EXPECT_EQ(a.AwaitGone(1), "a notice of 20481 bytes to process 1, more than 20480");
}

TYPED_TEST(SocketTransportTest, WithoutAThreadCreationIsAnError) {
  const NoThreads none;
  class : public Transport::Events {
    void OnNotice(uint32_t, std::string_view) override {}
    void OnPeerGone(uint32_t, const Status&) override {}
  } events;
  EXPECT_EQ(TypeParam::Create(0, &events).message(),
            std::string("no transport over ") + TypeParam::kName + " can be made: the system cannot start a thread");
}

}  // namespace
}  // namespace jaxcomm

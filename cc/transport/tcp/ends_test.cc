// Tests with processes that leave, die, do not read, or break the protocol.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>

#include "cc/transport/crypto/libcrypto.h"
#include "cc/transport/socket.h"
#include "cc/transport/tcp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(EndsTest, AProcessThatDiesFailsItsMessages) {
  for (const bool reset : {false, true}) {
    Node a(0);
    Raw raw(a, 1);
    Bytes into(100);
    const Bytes data(Transport::kMaxMessage);
    raw.Send({FrameType::kMessage, 100, Id(1, 1, 0, 0)}, Bytes(50));
    a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());
    for (uint32_t i = 0; i < 50; ++i) a.transport->Send({{1, Id(1, 0, 1, i)}}, All(data), a.OnSent());
    a.transport->Flush();
    if (reset) {
      raw.Reset();
      EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: connection reset");
    } else {
      raw.Close();
      EXPECT_EQ(a.AwaitGone(1).find("process 1 is gone: connection "), 0u);
    }
    a.Await([&] { return a.sent + a.failed == 51; });
    EXPECT_GE(a.failed, 2);
    a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
    a.Await([&] { return a.sent + a.failed == 52; });
  }
}

TEST(EndsTest, MessagesFromBeforeAnEndComeBeforeItsEvent) {
  for (const bool reset : {false, true}) {
    Node a(0);
    Raw raw(a, 1);
    Bytes into(1000), early(1000);
    const Bytes data = Pattern(1000, 1);
    a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
    a.transport->Notify(1, "which nobody reads");  // with an unread notice, Close also resets the connection
    a.transport->Flush();
    raw.Send({FrameType::kNotice, 0, {}});
    raw.Send({FrameType::kMessage, 1000, Id(1, 1, 0, 1)}, data);
    raw.Send({FrameType::kMessage, 1000, Id(1, 1, 0, 0)}, data);
    raw.AwaitArrival();
    reset ? raw.Reset() : raw.Close();
    a.AwaitGone(1);
    EXPECT_EQ(a.received, 1);
    EXPECT_EQ(into, data);
    EXPECT_EQ(a.AwaitNotices(1, 1).size(), 1u);
    a.transport->Post(1, Id(1, 1, 0, 1), All(early), false, a.OnReceived());
    a.Await([&] { return a.received + a.failed == 2; });
    EXPECT_EQ(early, data);
  }
}

TEST(EndsTest, AProcessThatDoesNotReadOwesNoAnswer) {
  const auto [ours, its] = Connection();
  ASSERT_TRUE(PrepareSocket(ours).ok());
  int timeout = 0;
  socklen_t length = sizeof(timeout);
  ASSERT_EQ(getsockopt(ours, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &length), 0);
  EXPECT_EQ(timeout, 0);  // with a timeout, the kernel would end the connection
  const Bytes data(1 << 20);
  ConnectionWatch watch;
  tcp_info info{};
  do {  // fills the connection until this kernel has sent no data for 1.5 s
    while (send(ours, data.data(), data.size(), MSG_NOSIGNAL) > 0) {
    }
    EXPECT_EQ(watch.Look(ours, std::chrono::milliseconds(100), kSilence), std::nullopt);
    length = sizeof(info);
    ASSERT_EQ(getsockopt(ours, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    pollfd writable{ours, POLLOUT, 0};
    poll(&writable, 1, /*milliseconds=*/100);
  } while (info.tcpi_last_data_sent < 1500);
  EXPECT_EQ(watch.Look(ours, std::chrono::milliseconds(100), kSilence), std::nullopt);
  close(ours);
  close(its);
}

// If a path loses a fifth of its packets, a probe or its answer gets lost in 36 of 100 cases. Four losses in a row
// happen in 1.7 of 100 cases, and nine in a row in 1 of 10 000 cases.
TEST(EndsTest, EightProbesMayBeLostBeforeAHostCountsAsSilent) {
  const auto [ours, its] = Connection();
  ASSERT_TRUE(PrepareSocket(ours).ok());
  const auto get = [socket = ours](int option) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, option, &value, &length), 0);
    return value;
  };
  const int probes = get(TCP_KEEPCNT);
  EXPECT_GE(probes, 9);
  EXPECT_EQ(get(TCP_KEEPIDLE) + probes * get(TCP_KEEPINTVL), kSilence.count());
  close(ours);
  close(its);
}

TEST(EndsTest, ForgedBytesCutOffAnEncryptedProcess) {
  if (!Libcrypto::Get().ok()) GTEST_SKIP() << "this machine has no libcrypto";
  Node a(0);
  Raw raw(a, 1, /*is_encrypted=*/true);
  const std::string secret = "a notice that only process 1 may read";
  a.transport->Notify(1, secret);
  a.transport->Flush();
  const Bytes seen = raw.Read(kHeaderBytes + secret.size());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(seen.data()), seen.size()).find("notice"), std::string::npos);
  raw.Send({FrameType::kNotice, 0, {}});
  EXPECT_EQ(a.AwaitGone(1), "process 1 has been cut off: it sent bytes that were changed or forged on their way");
  EXPECT_EQ(a.AwaitNotices(1, 0).size(), 0u);
}

TEST(EndsTest, AProcessThatClosesWithoutAGoodbyeIsGone) {
  Node a(0);
  Raw raw(a, 1);
  raw.Close();
  EXPECT_EQ(a.AwaitGone(1), "process 1 is gone: connection closed");
}

TEST(EndsTest, AFencedProcessIsResetAndCanBeConnectedAgain) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(10), early(10), again(10);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  b.transport->Send({{0, Id(1, 1, 0, 1)}}, All(std::as_const(early)), b.OnSent());
  b.transport->Notify(0, "behind it");
  b.transport->Flush();
  a.AwaitNotices(1, 1);
  a.transport->Fence(1, Status(Code::kInternal, "it is silent"));
  EXPECT_EQ(b.AwaitGone(0), "process 0 is gone: connection reset");
  EXPECT_EQ(a.received + a.failed, 0);
  a.transport->Post(1, Id(1, 1, 0, 1), All(into), false, a.OnReceived());  // the early message has been dropped
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(a.last_error, "it is silent");
  b.transport->Fence(0, Status(Code::kInternal, "it is silent"));
  Connect(a, b);
  const Bytes bytes = Pattern(10, 7);
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(bytes), b.OnSent());
  a.transport->Post(1, Id(1, 1, 0, 0), All(again), false, a.OnReceived());
  b.transport->Flush();
  a.Await([&] { return a.received == 1; });
  EXPECT_EQ(again, bytes);
}

TEST(EndsTest, OnlyAProcessThatBreaksTheProtocolIsCutOff) {
  Node a(0), b(1);
  Connect(a, b);
  Bytes into(10);
  a.transport->Post(2, Id(1, 2, 0, 0), All(into), false, a.OnReceived());
  a.Await([&] { return a.failed == 1; });
  EXPECT_EQ(a.last_error, "process 2 is not connected to process 0");
  Raw garbage(a, 2), oversize(a, 3), size(a, 4), stranger(a, 5), early(a, 6);
  garbage.Send(Bytes(100, std::byte{0x20}));
  EXPECT_EQ(a.AwaitGone(2), "process 2 has been cut off: it sent a frame of the unknown type 0x20202020");
  oversize.Send({FrameType::kMessage, Transport::kMaxMessage + 1, {}});
  EXPECT_EQ(a.AwaitGone(3), "process 3 has been cut off: it sent a message of 262145 bytes, more than 262144");
  a.transport->Post(4, Id(1, 4, 0, 0), All(into), false, a.OnReceived());
  size.Send({FrameType::kMessage, 11, Id(1, 4, 0, 0)});
  EXPECT_NE(a.AwaitGone(4).find("with 11 bytes where 10 are expected"), std::string::npos);
  a.transport->Post(1, Id(1, 1, 0, 0), All(into), false, a.OnReceived());
  stranger.Send({FrameType::kMessage, 10, Id(1, 1, 0, 0)});
  EXPECT_NE(a.AwaitGone(5).find("which only process 1 may send"), std::string::npos);
  early.Send({FrameType::kMessage, 11, Id(1, 6, 0, 0)}, Bytes(11));
  early.Send({FrameType::kNotice, 0, {}});
  a.AwaitNotices(6, 1);
  a.transport->Post(6, Id(1, 6, 0, 0), All(into), false, a.OnReceived());
  EXPECT_NE(a.AwaitGone(6).find("with 11 bytes where 10 are expected"), std::string::npos);
  a.Await([&] { return a.failed == 3; });
  EXPECT_EQ(into, Bytes(10));

  const Bytes data = Pattern(10, 1);
  b.transport->Send({{0, Id(1, 1, 0, 0)}}, All(data), b.OnSent());
  b.transport->Flush();
  a.Await([&] { return a.received == 1; });
  EXPECT_EQ(into, data);
}

}  // namespace
}  // namespace jaxcomm

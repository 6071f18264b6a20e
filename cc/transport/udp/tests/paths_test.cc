// Tests of two processes with several paths, some of which lose all packets.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "cc/transport/udp/testing/bad_line.h"
#include "cc/transport/udp/testing/node.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr size_t kPaths = 4, kCut = 1;  // kCut: the path that the tests cut
constexpr int kProbesOnly = 60;         // more packets than the probes of a second

class PathsTest : public testing::Test {
 protected:
  PathsTest() {
    for (unsigned i = 0; i < kPaths; ++i) lines_.emplace_back(BadLine::Faults{/*seed=*/i, 0, 0, 0});
    const auto [to_b, to_a] = PathsOver(lines_);
    EXPECT_TRUE(a_.transport->AddPeer(1, to_b).ok());
    EXPECT_TRUE(b_.transport->AddPeer(0, to_a).ok());
  }

  // Sends a message to the process `to`, and waits until it has arrived.
  void Send(uint32_t to) {
    UdpNode& sender = to == 1 ? a_ : b_;
    UdpNode& receiver = to == 1 ? b_ : a_;
    Bytes into(data_.size());
    const MessageId id = Id(++calls_, sender.process, to, 0);
    receiver.transport->Post(sender.process, id, All(into), /*accepts_view=*/false, receiver.OnReceived());
    sender.transport->Send({{to, id}}, All(data_), sender.OnSent());
    sender.transport->Flush();
    receiver.Await([&, wanted = ++received_[to]] { return receiver.received == wanted; });
    sender.Await([&, wanted = received_[to]] { return sender.sent == wanted; });
    EXPECT_TRUE(Same(into, data_));
  }
  // Returns the number of packets that the cut line is given to process 1 during some messages.
  int PacketsOverCut() {
    const int before = lines_[kCut].packets[1];
    for (int i = 0; i < 8; ++i) Send(1);
    return lines_[kCut].packets[1] - before;
  }
  // Sends messages until the cut line gets probes only, or packets again.
  void AwaitCut(bool is_cut) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while ((PacketsOverCut() < kProbesOnly) != is_cut) ASSERT_LT(std::chrono::steady_clock::now(), limit);
  }

  std::deque<BadLine> lines_;
  UdpNode a_{0}, b_{1};
  const Bytes data_ = Pattern(1 << 18, 1);
  uint32_t calls_ = 0;
  std::array<int, 2> received_ = {};  // messages to each process
};

TEST_F(PathsTest, AMessageIsSpreadOverAllOfThem) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto carries = [](const BadLine& line) { return line.packets[1] > 300; };
  while (!std::all_of(lines_.begin(), lines_.end(), carries)) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
    Send(1);
  }
}

TEST_F(PathsTest, APathThatIsCutGetsProbesOnlyAndReturns) {
  for (int i = 0; i < 20; ++i) Send(1);
  for (std::atomic<bool>& each : lines_[kCut].is_cut) each = true;
  AwaitCut(true);
  for (std::atomic<bool>& each : lines_[kCut].is_cut) each = false;
  AwaitCut(false);
}

TEST_F(PathsTest, APathMayPassPacketsInOneDirectionOnly) {
  for (int i = 0; i < 20; ++i) {
    Send(1);
    Send(0);
  }
  lines_[kCut].is_cut[0] = true;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  for (int packets = 0; packets < 10 * kProbesOnly;) {  // process 0 still uses the path
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
    packets = PacketsOverCut();
    for (int i = 0; i < 8; ++i) Send(0);
  }
}

TEST_F(PathsTest, IdlePathsShowThatTheOnlyPathInUseIsCut) {
  for (int i = 0; i < 20; ++i) Send(1);
  size_t notices = 0;
  const auto notify = [&] {
    a_.transport->Notify(1, "over the fastest path");
    a_.transport->Flush();
    b_.AwaitNotices(0, ++notices);
  };
  for (int i = 0; i < 10; ++i) {  // the same path is the fastest again, at least once
    std::array<int, kPaths> before;
    for (size_t path = 0; path < kPaths; ++path) before[path] = lines_[path].packets[1];
    notify();
    for (size_t path = 0; path < kPaths; ++path) lines_[path].is_cut[1] = lines_[path].packets[1] > before[path];
    notify();
    for (BadLine& line : lines_) line.is_cut[1] = false;
  }
}

TEST_F(PathsTest, AProcessStaysWhileAPathThatIsCutStaysIdle) {
  for (int i = 0; i < 20; ++i) Send(1);
  for (std::atomic<bool>& each : lines_[kCut].is_cut) each = true;
  AwaitCut(true);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_EQ(a_.transport->ProgressTo(1).unanswered, 0u);  // the probes of a path that is cut are no lack of progress
  Send(1);
}

// Bytes that were in flight on the cut path are given up. The receiver must then learn that the messages were sent.
TEST_F(PathsTest, MessagesThatMayLoseAPartEndAlthoughAPathIsCut) {
  constexpr int64_t kSpan = 1024, kSpans = 128;
  const std::vector<bool> important(kSpans, false);
  for (int i = 0; i < 40; ++i) {
    for (std::atomic<bool>& each : lines_[kCut].is_cut) each = i % 10 >= 5;
    Bytes into(kSpans * kSpan);
    std::vector<Span> to;
    std::vector<ConstSpan> from;
    for (int64_t at = 0; at < kSpans * kSpan; at += kSpan) {
      to.push_back({into.data() + at, kSpan, at});
      from.push_back({data_.data() + at, kSpan, at});
    }
    const MessageId id = Id(++calls_, 0, 1, 0);
    b_.transport->PostLossy(
        0, id, to, kSpans * kSpan / 2,
        [done = b_.OnReceived()](const Status& status, auto, const auto&) { done(status, nullptr); });
    a_.transport->SendLossy({1, id}, from, important, kSpans * kSpan / 2, a_.OnSent());
    a_.transport->Flush();
    b_.Await([&, wanted = ++received_[1]] { return b_.received == wanted; });
    a_.Await([&, wanted = received_[1]] { return a_.sent == wanted; });
  }
}

// Packets of these lines arrive late, get lost and are repeated.
TEST(PrioritiesTest, MessagesOfAllPrioritiesArriveOverBadLinesOneOfWhichIsCut) {
  constexpr uint32_t kPriorities = 3, kMessages = 60;
  std::deque<BadLine> lines;
  for (unsigned i = 0; i < kPaths; ++i) lines.emplace_back(BadLine::Faults{/*seed=*/i, 0.02, 0.01, 0.02});
  auto [to_b, to_a] = PathsOver(lines);
  to_b.priorities = kPriorities;  // the other process sends with one priority
  UdpNode a(0), b(1);
  EXPECT_TRUE(a.transport->AddPeer(1, to_b).ok());
  EXPECT_TRUE(b.transport->AddPeer(0, to_a).ok());
  const Bytes data = Pattern(100000, 1);
  for (uint32_t round = 1; round <= 4; ++round) {
    lines[kCut].is_cut[1] = round % 2 == 0;
    std::deque<Bytes> into;
    for (uint32_t i = 0; i < kMessages; ++i) {
      into.emplace_back(data.size());
      b.transport->Post(0, Id(round, 0, 1, i), All(into.back()), /*accepts_view=*/false, b.OnReceived());
      a.transport->Send({{1, Id(round, 0, 1, i), i % (kPriorities + 2)}}, All(data), a.OnSent());
    }
    a.transport->Flush();
    const auto count = static_cast<int>(round * kMessages);
    b.Await([&] { return b.received == count; });
    a.Await([&] { return a.sent == count; });
    for (const Bytes& each : into) EXPECT_TRUE(Same(each, data));
  }
}

TEST(PathsErrorsTest, TooManyPrioritiesAreRefused) {
  UdpNode a(0);
  auto [to_b, to_a] = Paths();
  to_b.priorities = TrafficClass::kQueues + 1;
  EXPECT_EQ(a.transport->AddPeer(1, to_b).message(), "process 1 cannot be connected: 9 priorities; 1 to 8 are allowed");
  for (const int socket : SocketsOf(to_a)) close(socket);
}

TEST(PathsErrorsTest, TooManyPathsAreRefused) {
  UdpNode a(0);
  std::deque<BadLine> lines;
  for (unsigned i = 0; i < UdpTransport::kMaxPaths + 1; ++i) lines.emplace_back(BadLine::Faults{i, 0, 0, 0});
  const auto [to_b, to_a] = PathsOver(lines);
  EXPECT_EQ(a.transport->AddPeer(1, to_b).message(), "process 1 cannot be connected: 65 paths; 1 to 64 are allowed");
  for (const int socket : SocketsOf(to_a)) close(socket);
}

}  // namespace
}  // namespace jaxcomm

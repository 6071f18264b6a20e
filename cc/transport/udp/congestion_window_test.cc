#include "cc/transport/udp/congestion_window.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
constexpr int64_t kPacket = 1400;

// Flows that share a line with a queue of so many bytes, packet by packet; all that is random in a test is the loss.
class Line {
 public:
  Line(double bytes_per_second, int64_t queue, size_t flows)
      : speed_(bytes_per_second), queue_(queue), flows_(flows, Flow{CongestionWindow(kPacket, kRoom)}) {
    for (Flow& flow : flows_) flow.window.Take({0, kPacket, 1, 0}, kBase, false);  // a first notice is answered
  }

  void Run(int64_t until, int64_t lose_each = 0) {
    for (; now_ < until; now_ += 10 * kMicrosecond) {
      for (size_t i = 0; i < flows_.size(); ++i) {
        while (Send(i, lose_each)) {
        }
      }
      while (!answers_.empty() && answers_.front().at <= now_) {
        const Answer& answer = answers_.front();
        Flow& flow = flows_[answer.flow];
        flow.under_way -= answer.answered.packets * kPacket;
        flow.window.Take(answer.answered, kBase + answer.delay, true);
        answers_.pop_front();
      }
    }
  }
  double come(size_t flow) const { return static_cast<double>(flows_[flow].come); }
  double lost(size_t flow) const { return static_cast<double>(flows_[flow].lost); }
  void Forget() {
    for (Flow& flow : flows_) flow.come = flow.lost = 0;
  }

 private:
  static constexpr int64_t kBase = 100 * kMicrosecond, kRoom = int64_t{4} << 20;
  struct Flow {
    CongestionWindow window;
    int64_t under_way = 0, come = 0, lost = 0;  // bytes, bytes, packets
  };
  struct Answer {
    int64_t at;
    size_t flow;
    int64_t delay;
    Answered answered;
  };

  bool Send(size_t index, int64_t lose_each) {
    Flow& flow = flows_[index];
    const int64_t room = flow.window.bytes() - flow.under_way;
    Answered answered;
    for (int64_t left = std::min(room, flow.window.bytes() / 4); left >= kPacket; left -= kPacket) {
      ++answered.packets;
      free_ = std::max(free_, now_);
      const auto queued = static_cast<int64_t>(1e-9 * static_cast<double>(free_ - now_) * speed_);
      if (queued > queue_ || (lose_each && ++sent_ % lose_each == 0)) {
        ++answered.lost;
        ++flow.lost;
        continue;
      }
      free_ += static_cast<int64_t>(1e9 * kPacket / speed_);
      answered.bytes += kPacket;
      flow.come += kPacket;
    }
    if (answered.packets == 0) return false;
    flow.under_way += answered.packets * kPacket;
    answers_.push_back({free_ + kBase, index, free_ - now_, answered});
    return true;
  }

  const double speed_;
  const int64_t queue_;
  std::vector<Flow> flows_;
  std::deque<Answer> answers_;
  int64_t now_ = kSecond, free_ = 0, sent_ = 0;
};

TEST(CongestionWindowTest, OneFlowFillsItsLineAndKeepsTheQueueShort) {
  for (const double speed : {12.5e6, 62.5e6, 125e6, 1.25e9}) {
    Line line(speed, /*queue=*/1 << 20, 1);
    line.Run(3 * kSecond);  // the first is for finding the window
    line.Forget();
    line.Run(5 * kSecond);
    EXPECT_GT(line.come(0), 0.9 * 2 * speed) << speed;
    EXPECT_LT(line.lost(0) * kPacket, 0.01 * line.come(0)) << speed;
  }
}

TEST(CongestionWindowTest, RandomLossAloneDoesNotSlowItDown) {
  Line line(62.5e6, 1 << 20, 1);
  line.Run(2 * kSecond, 100);
  line.Forget();
  line.Run(3 * kSecond, 100);
  EXPECT_GT(line.come(0), 0.85 * 62.5e6);
}

TEST(CongestionWindowTest, FlowsShareAShallowQueueEvenly) {
  for (const int64_t queue : {32 << 10, 64 << 10, 256 << 10}) {
    Line line(25e6, queue, 3);
    line.Run(4 * kSecond);
    line.Forget();
    line.Run(8 * kSecond);
    double sum = 0, squares = 0, lost = 0;
    for (size_t flow = 0; flow < 3; ++flow) {
      sum += line.come(flow);
      squares += line.come(flow) * line.come(flow);
      lost += line.lost(flow) * kPacket;
    }
    EXPECT_GT(sum, 0.85 * 4 * 25e6) << queue;
    EXPECT_GT(sum * sum / (3 * squares), 0.9) << queue;  // Jain's index of fairness
    EXPECT_LT(lost, 0.1 * sum) << queue;
  }
}

Answered Round(const CongestionWindow& window) {
  const int64_t packets = window.bytes() / kPacket;
  return {0, packets * kPacket, packets, 0};
}

TEST(CongestionWindowTest, OneLateAnswerDoesNotNarrowIt) {
  CongestionWindow window(kPacket, 1 << 20);
  for (int i = 0; i < 3; ++i) window.Take(Round(window), 100 * kMicrosecond, true);
  const int64_t before = window.bytes();
  Answered half = Round(window);
  half.packets /= 2;
  window.Take(half, 50 * kMillisecond, true);
  window.Take(half, 100 * kMicrosecond, true);
  EXPECT_GE(window.bytes(), before);
  for (int i = 0; i < 3; ++i) window.Take(Round(window), 50 * kMillisecond, true);
  EXPECT_LT(window.bytes(), before);
}

TEST(CongestionWindowTest, IsWidenedWhereItIsFullOnlyAndNeverBeyondTheRoom) {
  CongestionWindow window(kPacket, 30 * kPacket);
  const int64_t before = window.bytes();
  for (int i = 0; i < 10; ++i) window.Take(Round(window), 100 * kMicrosecond, false);
  EXPECT_EQ(window.bytes(), before);
  for (int i = 0; i < 10; ++i) window.Take(Round(window), 100 * kMicrosecond, true);
  EXPECT_EQ(window.bytes(), 30 * kPacket);
}

TEST(CongestionWindowTest, KeepsAFewPacketsHoweverLongTheQueue) {
  CongestionWindow window(kPacket, 1 << 20);
  window.Take(Round(window), 100 * kMicrosecond, true);
  for (int i = 0; i < 100; ++i) window.Take(Round(window), 500 * kMillisecond, true);
  EXPECT_EQ(window.bytes(), 4 * kPacket);
}

}  // namespace
}  // namespace jaxcomm

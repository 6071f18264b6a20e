#include "cc/transport/udp/rate_control.h"

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
  Line(double bytes_per_second, int64_t queue, size_t flows) : speed_(bytes_per_second), queue_(queue) {
    for (size_t i = 0; i < flows; ++i) {
      flows_.emplace_back(kPacket);
      flows_.back().Take({0, kPacket, 1, 0}, kBase, now_);  // as the first notice of a process is answered
    }
    come_.resize(flows);
    lost_.resize(flows);
  }

  void Run(int64_t until, int64_t lose_each = 0) {
    for (; now_ < until; now_ += 10 * kMicrosecond) {
      for (size_t i = 0; i < flows_.size(); ++i) Send(i, lose_each);
      while (!answers_.empty() && answers_.front().at <= now_) {
        const Answer& answer = answers_.front();
        flows_[answer.flow].Take(answer.answered, kBase + answer.delay, now_);
        answers_.pop_front();
      }
    }
  }
  double come(size_t flow) const { return static_cast<double>(come_[flow]); }
  double lost(size_t flow) const { return static_cast<double>(lost_[flow]); }
  void Forget() {
    std::fill(come_.begin(), come_.end(), 0);
    std::fill(lost_.begin(), lost_.end(), 0);
  }

 private:
  static constexpr int64_t kBase = 100 * kMicrosecond;
  struct Answer {
    int64_t at;
    size_t flow;
    int64_t delay;
    Answered answered;
  };

  void Send(size_t flow, int64_t lose_each) {
    int64_t allowed = std::min(flows_[flow].Allowance(now_), flows_[flow].batch());
    Answered answered;
    for (; allowed > 0; allowed -= kPacket) {
      flows_[flow].Spend(kPacket);
      ++answered.packets;
      free_ = std::max(free_, now_);
      const auto queued = static_cast<int64_t>(1e-9 * static_cast<double>(free_ - now_) * speed_);
      if (queued > queue_ || (lose_each && ++sent_ % lose_each == 0)) {
        ++answered.lost;
        ++lost_[flow];
        continue;
      }
      free_ += static_cast<int64_t>(1e9 * kPacket / speed_);
      answered.bytes += kPacket;
      come_[flow] += kPacket;
    }
    if (answered.packets == 0) return;
    answers_.push_back({free_ + kBase, flow, free_ - now_, answered});
  }

  const double speed_;
  const int64_t queue_;
  std::vector<RateControl> flows_;
  std::vector<int64_t> come_, lost_;
  std::deque<Answer> answers_;
  int64_t now_ = kSecond, free_ = 0, sent_ = 0;
};

TEST(RateControlTest, OneFlowFillsItsLineAndKeepsTheQueueShort) {
  for (const double speed : {12.5e6, 62.5e6, 125e6, 1.25e9}) {
    Line line(speed, /*queue=*/1 << 20, 1);
    line.Run(3 * kSecond);  // the first is for finding the rate
    line.Forget();
    line.Run(5 * kSecond);
    EXPECT_GT(line.come(0), 0.9 * 2 * speed) << speed;
    EXPECT_LT(line.lost(0) * kPacket, 0.01 * line.come(0)) << speed;
  }
}

TEST(RateControlTest, RandomLossAloneDoesNotSlowItDown) {
  Line line(62.5e6, 1 << 20, 1);
  line.Run(2 * kSecond, 100);
  line.Forget();
  line.Run(3 * kSecond, 100);
  EXPECT_GT(line.come(0), 0.85 * 62.5e6);
}

TEST(RateControlTest, FlowsShareAShallowQueueEvenly) {
  Line line(25e6, /*queue=*/64 << 10, 3);
  line.Run(4 * kSecond);
  line.Forget();
  line.Run(8 * kSecond);
  double sum = 0, squares = 0, lost = 0;
  for (size_t flow = 0; flow < 3; ++flow) {
    sum += line.come(flow);
    squares += line.come(flow) * line.come(flow);
    lost += line.lost(flow) * kPacket;
  }
  EXPECT_GT(sum, 0.85 * 4 * 25e6);
  EXPECT_GT(sum * sum / (3 * squares), 0.9);  // Jain's index of fairness
  EXPECT_LT(lost, 0.1 * sum);
}

TEST(RateControlTest, OneLateAnswerDoesNotSlowItDown) {
  RateControl rate(kPacket);
  Answered answered;
  answered.packets = 10;
  answered.bytes = 10 * kPacket;
  int64_t now = kSecond;
  for (int i = 0; i < 10; ++i) rate.Take(answered, 100 * kMicrosecond, now += kMillisecond);
  const double before = rate.rate();
  rate.Take(answered, 50 * kMillisecond, now += kMillisecond);
  EXPECT_GE(rate.rate(), before);
  for (int i = 0; i < 4; ++i) rate.Take(answered, 50 * kMillisecond, now += kMillisecond);
  EXPECT_LT(rate.rate(), before);
}

}  // namespace
}  // namespace jaxcomm

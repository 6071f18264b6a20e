#include "cc/transport/udp/rate_control.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond, kSecond = 1000 * kMillisecond;
constexpr int64_t kPacket = 1400;

// Simulates flows that share a line with a byte-limited queue, packet by packet. Acknowledgements are sent every
// millisecond and may be delayed.
class Line {
 public:
  // The flows start `begin` nanoseconds after the line starts.
  Line(double bytes_per_second, int64_t queue, size_t flows, int64_t answers_wait = 0, int64_t begin = 0)
      : speed_(bytes_per_second), queue_(queue), answers_wait_(answers_wait), begin_(kSecond + begin), flows_(flows) {}

  // Makes the flows the paths to one process, which has `paths` paths.
  void UsePaths(size_t paths) {
    for (Flow& flow : flows_) flow.rate = RateControl(kPacket, paths);
    is_of_paths_ = true;
  }

  // Starts and stops a TCP flow on the same line.
  void StartTcp() { tcp_.window = 10 * kPacket; }
  void StopTcp() { tcp_ = Tcp(); }

  // Stops flow number `flow` and all flows with higher numbers. Resume restarts all flows.
  void StopFrom(size_t flow) { sending_ = flow; }
  void Resume() {
    sending_ = flows_.size();
    for (Flow& flow : flows_) flow.rate.Pause(now_);
  }

  void Run(int64_t until, int64_t lose_each = 0) {
    for (; now_ < until; now_ += 10 * kMicrosecond) {
      RunTcp();
      if (now_ < begin_) continue;
      if (now_ == begin_) Begin();
      for (size_t i = 0; i < flows_.size(); ++i) {
        Flow& flow = flows_[i];
        if (i < sending_) Send(flow, lose_each);
        if (now_ % kMillisecond == 0) Answer(flow);
        for (; !flow.answers.empty() && flow.answers.front().at <= now_; flow.answers.pop_front()) {
          Trip trip = flow.answers.front().trip;
          for (size_t path = 0; is_of_paths_ && path < flows_.size(); ++path) {
            trip.shortest.Include(flows_[path].rate.shortest());
          }
          flow.rate.Take(flow.answers.front().answered, trip, now_);
        }
      }
    }
  }
  double rate(size_t flow) const { return flows_[flow].rate.rate(); }
  double come(size_t flow) const { return static_cast<double>(flows_[flow].come); }
  double lost(size_t flow) const { return static_cast<double>(flows_[flow].lost); }
  int64_t queued() const { return std::max<int64_t>(0, free_ - now_); }  // nanoseconds
  double tcp_come() const { return static_cast<double>(tcp_come_); }
  void Forget() {
    for (Flow& flow : flows_) flow.come = flow.lost = 0;
    tcp_come_ = 0;
  }

 private:
  // kBase is the RTT. The receiver's clock is ahead of the sender's clock by kClocks.
  static constexpr int64_t kBase = 100 * kMicrosecond, kClocks = 77 * kSecond;
  static uint32_t Microseconds(int64_t time) { return static_cast<uint32_t>(time / kMicrosecond); }

  struct Packet {
    int64_t sent, comes;
    bool is_lost;
  };
  struct Reply {
    int64_t at;
    Answered answered;
    Trip trip;
  };
  struct Flow {
    RateControl rate{kPacket};
    std::deque<Packet> packets;
    std::deque<Reply> answers;
    int64_t come = 0, lost = 0;
  };

  // Passes an acknowledgement of one packet to each flow.
  void Begin() {
    const Trip trip = {kBase + queued(), Microseconds(now_), Microseconds(now_ + queued() + kClocks)};
    for (Flow& flow : flows_) flow.rate.Take({0, kPacket, 1, 0}, trip, now_);
  }

  // A TCP flow. Its window grows while packets arrive, and shrinks when the queue drops packets.
  struct Tcp {
    double window = 0;
    bool is_starting = true;
    int64_t slowed = 0;  // time of the last slow-down
    std::deque<Packet> packets;
  };

  void RunTcp() {
    for (; !tcp_.packets.empty() && tcp_.packets.front().comes + kBase <= now_; tcp_.packets.pop_front()) {
      const Packet& packet = tcp_.packets.front();
      if (!packet.is_lost) {
        tcp_.window += tcp_.is_starting ? kPacket : kPacket * kPacket / tcp_.window;
        tcp_come_ += kPacket;
      } else if (packet.sent > tcp_.slowed) {
        tcp_.window *= 0.7;
        tcp_.is_starting = false;
        tcp_.slowed = now_;
      }
    }
    while (static_cast<double>(tcp_.packets.size()) * kPacket < tcp_.window) tcp_.packets.push_back(Offer(false));
  }

  Packet Offer(bool is_lost) {
    free_ = std::max(free_, now_);
    is_lost = is_lost || 1e-9 * static_cast<double>(free_ - now_) * speed_ > static_cast<double>(queue_);
    if (!is_lost) free_ += static_cast<int64_t>(1e9 * kPacket / speed_);
    return {now_, free_, is_lost};
  }

  void Send(Flow& flow, int64_t lose_each) {
    for (int64_t allowed = std::min(flow.rate.Allowance(now_), flow.rate.batch()); allowed > 0; allowed -= kPacket) {
      flow.rate.Spend(kPacket);
      const Packet& packet = flow.packets.emplace_back(Offer(lose_each && ++sent_ % lose_each == 0));
      (packet.is_lost ? flow.lost : flow.come) += packet.is_lost ? 1 : kPacket;
    }
  }

  void Answer(Flow& flow) {
    Answered answered;
    Packet newest{};
    for (; !flow.packets.empty() && flow.packets.front().comes <= now_; flow.packets.pop_front()) {
      newest = flow.packets.front();
      ++answered.packets;
      answered.lost += newest.is_lost;
      answered.bytes += newest.is_lost ? 0 : kPacket;
    }
    if (answered.packets == 0) return;
    const int64_t at = now_ + kBase + answers_wait_;
    const Trip trip = {newest.comes - newest.sent + kBase + answers_wait_, Microseconds(newest.sent),
                       Microseconds(newest.comes + kClocks)};
    flow.answers.push_back({at, answered, trip});
  }

  const double speed_;
  const int64_t queue_, answers_wait_, begin_;
  std::vector<Flow> flows_;
  size_t sending_ = flows_.size();
  bool is_of_paths_ = false;
  Tcp tcp_;
  int64_t now_ = kSecond, free_ = 0, sent_ = 0, tcp_come_ = 0;
};

TEST(RateControlTest, OneFlowFillsItsLineAndKeepsTheQueueShort) {
  for (const double speed : {12.5e6, 62.5e6, 125e6, 1.25e9}) {
    Line line(speed, /*queue=*/1 << 20, 1);
    line.Run(3 * kSecond);  // time for the flow to find the rate
    line.Forget();
    line.Run(5 * kSecond);
    EXPECT_GT(line.come(0), 0.9 * 2 * speed) << speed;
    EXPECT_LT(line.lost(0) * kPacket, 0.01 * line.come(0)) << speed;
  }
}

TEST(RateControlTest, AnswersThatWaitDoNotSlowItDown) {
  Line line(25e6, 1 << 20, 3, /*answers_wait=*/10 * kMillisecond);
  line.Run(2 * kSecond);
  line.Forget();
  line.Run(3 * kSecond);
  EXPECT_GT(line.come(0) + line.come(1) + line.come(2), 0.9 * 25e6);
}

TEST(RateControlTest, RandomLossAloneDoesNotSlowItDown) {
  Line line(62.5e6, 1 << 20, 1);
  line.Run(2 * kSecond, 100);
  line.Forget();
  line.Run(3 * kSecond, 100);
  EXPECT_GT(line.come(0), 0.85 * 62.5e6);
}

TEST(RateControlTest, FlowsShareAShallowQueueEvenly) {
  for (const size_t flows : {3, 7}) {
    Line line(25e6, /*queue=*/64 << 10, flows);
    line.Run(4 * kSecond);
    line.Forget();
    line.Run(8 * kSecond);
    double sum = 0, squares = 0, lost = 0;
    for (size_t flow = 0; flow < flows; ++flow) {
      sum += line.come(flow);
      squares += line.come(flow) * line.come(flow);
      lost += line.lost(flow) * kPacket;
    }
    EXPECT_GT(sum, 0.85 * 4 * 25e6) << flows;
    EXPECT_GT(sum * sum / (static_cast<double>(flows) * squares), 0.9) << flows;  // Jain's index of fairness
    EXPECT_LT(lost, 0.05 * sum) << flows;
  }
}

// Repeats the measurement kTimes times, because one flow's share of a few milliseconds varies by chance.
TEST(RateControlTest, FreedBandwidthIsTakenAndGivenBack) {
  constexpr double kSpeed = 62.5e6;
  constexpr int kTimes = 10;
  Line line(kSpeed, /*queue=*/512 << 10, 3);
  int64_t at = 3 * kSecond;
  double before[3] = {}, alone = 0, after[3] = {};
  for (int time = 0; time < kTimes; ++time) {
    line.Run(at += 300 * kMillisecond + time * 130 * kMicrosecond);
    line.Forget();
    line.Run(at += 20 * kMillisecond);
    for (size_t flow = 0; flow < 3; ++flow) before[flow] += line.come(flow);
    line.StopFrom(1);
    line.Run(at += 20 * kMillisecond);
    line.Forget();
    line.Run(at += 20 * kMillisecond);
    alone += line.come(0);
    line.StopFrom(0);
    line.Run(at += 20 * kMillisecond);
    line.Resume();
    line.Forget();
    line.Run(at += 20 * kMillisecond);
    EXPECT_LT(line.queued(), 4 * kMillisecond);
    for (size_t flow = 0; flow < 3; ++flow) after[flow] += line.come(flow);
  }
  EXPECT_GT(alone, 0.8 * kTimes * 0.02 * kSpeed);
  for (size_t flow = 0; flow < 3; ++flow) EXPECT_NEAR(after[flow] / before[flow], 1, 0.4) << flow;
}

TEST(RateControlTest, ALineThatDropsBeforePacketsWaitIsNotFlooded) {
  for (const double speed : {1.25e9, 125e6}) {
    Line line(speed, /*queue=*/static_cast<int64_t>(250e-6 * speed), 1);
    line.Run(3 * kSecond);
    line.Forget();
    line.Run(4 * kSecond);
    EXPECT_LT(line.lost(0) * kPacket, 0.03 * line.come(0)) << speed;
    EXPECT_GT(line.come(0), (speed > 1e9 ? 0.9 : 0.4) * speed) << speed;
  }
}

// The flows' minimum delay includes TCP's queue, so the flows see no queue.
TEST(RateControlTest, ManyFlowsThatBeganBehindTcpDoNotFloodItsQueue) {
  constexpr double kSpeed = 125e6;
  constexpr size_t kFlows = 15;
  Line line(kSpeed, /*queue=*/static_cast<int64_t>(60e-3 * kSpeed), kFlows, 0, /*begin=*/3 * kSecond);
  line.StartTcp();
  line.Run(8 * kSecond);
  line.StopTcp();
  line.Run(9 * kSecond);
  line.Forget();
  line.Run(10 * kSecond);
  double come = 0, lost = 0;
  for (size_t flow = 0; flow < kFlows; ++flow) {
    come += line.come(flow);
    lost += line.lost(flow) * kPacket;
  }
  EXPECT_GT(come, 0.9 * kSpeed);
  EXPECT_LT(lost, 0.05 * come);
}

TEST(RateControlTest, FreedBandwidthIsGivenBackAfterAnyPause) {
  constexpr double kSpeed = 62.5e6;
  Line line(kSpeed, /*queue=*/512 << 10, 3);
  line.Run(3 * kSecond);
  line.StopFrom(1);
  line.Run(3 * kSecond + 60 * kMillisecond);
  EXPECT_GT(line.rate(0), 0.9 * kSpeed);
  line.StopFrom(0);
  line.Run(3 * kSecond + 400 * kMillisecond);
  line.Resume();
  EXPECT_LT(line.rate(0), 0.75 * kSpeed);
}

TEST(RateControlTest, APauseIsNoTimeInWhichPacketsHaveNotWaited) {
  RateControl rate(kPacket);
  int64_t now = kSecond;
  const auto take = [&](int64_t wait) {
    now += kMillisecond;
    const auto us = [](int64_t time) { return static_cast<uint32_t>(time / kMicrosecond); };
    rate.Take({0, static_cast<int64_t>(0.9e-3 * rate.rate()), 1000, 0},
              {100 * kMicrosecond + wait, us(now), us(now + wait)}, now);
  };
  for (int i = 0; i < 4; ++i) take(0);
  for (int i = 0; i < 5; ++i) take(900 * kMicrosecond);
  now += 20 * kMillisecond;
  rate.Pause(now);
  take(0);
  const double before = rate.rate();
  take(0);
  EXPECT_LT(rate.rate() - before, 1.5 * std::sqrt(before * 4e3));
}

TEST(RateControlTest, PathsOnASlowLineFillItWithoutALongQueue) {
  for (const double speed : {0.625e6, 2.5e6, 20e6}) {
    Line line(speed, /*queue=*/1 << 19, /*flows=*/6);
    line.UsePaths(24);
    line.Run(10 * kSecond);
    line.Forget();
    int64_t longest = 0;
    for (int64_t until = 10 * kSecond; until < 15 * kSecond; until += 10 * kMillisecond) {
      line.Run(until);
      longest = std::max(longest, line.queued());
    }
    double come = 0, lost = 0;
    for (size_t path = 0; path < 6; ++path) {
      come += line.come(path);
      lost += line.lost(path);
    }
    EXPECT_GT(come, 0.85 * 5 * speed) << speed;
    EXPECT_EQ(lost, 0) << speed;
    EXPECT_LT(longest, 60 * kMillisecond) << speed;
  }
}

TEST(RateControlTest, TheQueueOfAPathThatHasNeverBeenEmptyCounts) {
  RateControl slow(kPacket, /*paths=*/2), fast(kPacket, /*paths=*/2);
  const auto take = [](RateControl& rate, int64_t wait, const ShortestDelays& shortest, int64_t now) {
    const auto microseconds = [](int64_t time) { return static_cast<uint32_t>(time / kMicrosecond); };
    const int64_t came = now + 50 * kMicrosecond + wait;
    rate.Take({0, 10 * kPacket, 10, 0}, {100 * kMicrosecond + wait, microseconds(now), microseconds(came), shortest},
              now);
  };
  const double before = slow.rate();
  EXPECT_EQ(before, RateControl(kPacket).rate() / 2);
  for (int64_t i = 1; i < 10; ++i) take(slow, 100 * kMillisecond, {}, kSecond + i * kMillisecond);
  EXPECT_GE(slow.rate(), before);
  take(fast, 0, {}, kSecond);
  EXPECT_EQ(fast.shortest().round, 100 * kMicrosecond);
  for (int64_t i = 10; i < 20; ++i) take(slow, 100 * kMillisecond, fast.shortest(), kSecond + i * kMillisecond);
  EXPECT_LT(slow.rate(), 0.6 * 14e6);  // half of the rate of arrivals
}

TEST(RateControlTest, PacketsGoInBatches) {
  RateControl rate(kPacket);
  const int64_t until = kSecond + 100 * RateControl::kBatchTime;
  int batches = 0;
  double bytes = -1e-3 * rate.rate();  // the initial burst allowance
  for (int64_t now = kSecond; now < until; now += 10 * kMicrosecond) {
    const int64_t allowed = std::min(rate.Allowance(now), rate.batch());
    if (allowed <= 0) {
      EXPECT_GT(rate.NextAt(), now);
      continue;
    }
    ++batches;
    int64_t sent = 0;
    while (sent < allowed) sent += kPacket;
    rate.Spend(sent);
    bytes += static_cast<double>(sent);
  }
  EXPECT_LE(batches, 100 * 4 / 3 + 5);
  EXPECT_NEAR(bytes, 100e-9 * RateControl::kBatchTime * rate.rate(), 2.0 * static_cast<double>(rate.batch()));
}

// The flows must share the line with TCP, no matter whether TCP or the flows start first.
TEST(RateControlTest, ItSharesALineWithTcp) {
  for (const size_t flows : {1, 3}) {
    for (const bool tcp_is_first : {false, true}) {
      Line line(25e6, /*queue=*/512 << 10, flows, 0, /*begin=*/tcp_is_first ? 3 * kSecond : 0);
      if (tcp_is_first) line.StartTcp();
      line.Run(6 * kSecond);
      if (!tcp_is_first) line.StartTcp();
      line.Run(9 * kSecond);
      for (const int64_t until : {14, 19, 24, 29}) {  // the last intervals end after the first minimum delay expires
        line.Forget();
        line.Run(until * kSecond);
        double come = 0, lost = 0;
        for (size_t flow = 0; flow < flows; ++flow) {
          come += line.come(flow);
          lost += line.lost(flow) * kPacket;
        }
        EXPECT_GT(come, 0.35 * 5 * 25e6) << flows << tcp_is_first << until;
        EXPECT_GT(line.tcp_come(), 0.2 * 5 * 25e6) << flows << tcp_is_first << until;
        EXPECT_LT(lost, 0.02 * come) << flows << tcp_is_first << until;
      }
      line.StopTcp();
      line.Run(30 * kSecond);
      line.Forget();
      line.Run(31 * kSecond);
      double come = 0;
      for (size_t flow = 0; flow < flows; ++flow) come += line.come(flow);
      EXPECT_GT(come, 0.9 * 25e6);
      EXPECT_LT(line.queued(), 4 * kMillisecond);
    }
  }
}

// A flow with an RTT of 100 us whose bytes arrive at 14 MB/s.
class AnsweredFlow {
 public:
  AnsweredFlow() {
    for (int i = 0; i < 10; ++i) Take(0);
  }
  void Take(int64_t wait, int64_t clocks = 0) {
    now_ += kMillisecond;
    const auto microseconds = [](int64_t time) { return static_cast<uint32_t>(time / kMicrosecond); };
    const Trip trip = {100 * kMicrosecond + wait, microseconds(now_),
                       microseconds(now_ + 50 * kMicrosecond + wait + clocks)};
    rate_.Take({0, 10 * kPacket, 10, 0}, trip, now_);
  }
  double rate() const { return rate_.rate(); }

 private:
  RateControl rate_{kPacket};
  int64_t now_ = kSecond;
};

TEST(RateControlTest, OnlyTwoLateAnswersSlowItDown) {
  AnsweredFlow flow;
  const double before = flow.rate();
  flow.Take(50 * kMillisecond);
  EXPECT_GE(flow.rate(), before);
  flow.Take(0);
  EXPECT_GE(flow.rate(), before);
  for (int i = 0; i < 2; ++i) flow.Take(50 * kMillisecond);
  EXPECT_NEAR(flow.rate(), 0.5 * 14e6, 1e6);
  for (int i = 0; i < 20; ++i) flow.Take(50 * kMillisecond);  // bytes still arrive at 14 MB/s
  EXPECT_NEAR(flow.rate(), 0.5 * 14e6, 1e6);
}

TEST(RateControlTest, AClockThatIsSetDoesNotSlowItDown) {
  for (const int64_t clocks : {-3600 * kSecond, -5 * kMillisecond, 5 * kMillisecond, 3600 * kSecond}) {
    AnsweredFlow flow;
    const double before = flow.rate();
    for (int i = 0; i < 100; ++i) flow.Take(0, clocks);
    EXPECT_GE(flow.rate(), before) << clocks;
    for (int i = 0; i < 2; ++i) flow.Take(50 * kMillisecond, clocks);
    EXPECT_LT(flow.rate(), before) << clocks;
  }
}

TEST(RateControlTest, AClockThatDriftsDoesNotSlowItDownForLong) {
  AnsweredFlow flow;
  double before = flow.rate();
  for (int64_t i = 0; i < 60000; ++i) {  // one minute, in which one clock gains 6 ms
    flow.Take(0, i * 100);
    EXPECT_GE(flow.rate(), before);
    before = flow.rate();
  }
}

}  // namespace
}  // namespace jaxcomm

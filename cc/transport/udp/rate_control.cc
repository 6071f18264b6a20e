#include "cc/transport/udp/rate_control.h"

#include <algorithm>
#include <cmath>

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr double kDepth = 1e-3;                      // seconds of the rate that may go at once after a pause
constexpr double kBatch = 0.25e-3;                   // seconds
constexpr int64_t kMaxBatch = 60000;                 // bytes: one datagram to be cut by the kernel
constexpr int64_t kLowDelay = 200 * kMicrosecond;    // of queues: faster below
constexpr int64_t kHighDelay = 800 * kMicrosecond;   // slower above
constexpr int64_t kBatchSlack = 300 * kMicrosecond;  // above the delay that two batches make by themselves
constexpr double kRaise = 0.02;                      // of the line's rate, each millisecond
constexpr double kBrake = 0.8, kLeastFactor = 0.5;   // of the part above the high delay; of the rate
constexpr int64_t kBrakePause = 500 * kMicrosecond;  // beside a round trip, between two brakes
constexpr double kLoss = 0.01;                       // slower above, so that random loss alone does not slow down
constexpr int64_t kLossPackets = 200;                // to judge by
constexpr int64_t kLossPause = 2 * kMillisecond;     // beside two round trips

}  // namespace

int64_t RateControl::Allowance(int64_t now) {
  const double most = std::max(rate_ * kDepth, 2.0 * static_cast<double>(batch()));
  tokens_ = std::min(most, tokens_ + 1e-9 * static_cast<double>(std::max<int64_t>(0, now - filled_)) * rate_);
  filled_ = now;
  return static_cast<int64_t>(tokens_);
}

int64_t RateControl::NextAt() const {
  const double missing = static_cast<double>(batch()) - tokens_;
  return filled_ + static_cast<int64_t>(std::ceil(std::max(0.0, missing) / rate_ * 1e9));
}

int64_t RateControl::batch() const {
  return std::max(packet_bytes_, std::min(kMaxBatch, static_cast<int64_t>(rate_ * kBatch)));
}

void RateControl::Take(const Answered& answered, int64_t round_trip, int64_t now) {
  Measure(answered, now);
  FollowDelay(round_trip, now);
  FollowLoss(answered, round_trip, now);
  rate_ = std::clamp(rate_, kLeast, kMost);
}

// What comes in a millisecond or more says what the line can do at least.
void RateControl::Measure(const Answered& answered, int64_t now) {
  measured_bytes_ += answered.bytes;
  const int64_t since = now - measured_;
  if (since < kMillisecond) return;
  line_ = std::max(line_, static_cast<double>(measured_bytes_) / (1e-9 * static_cast<double>(since)));
  measured_ = now;
  measured_bytes_ = 0;
}

void RateControl::FollowDelay(int64_t round_trip, int64_t now) {
  base_ = std::min(base_, round_trip);
  recent_[next_recent_++ % recent_.size()] = round_trip;
  // A queue lasts; a thread that waited for its core is late once.
  const size_t count = std::min(next_recent_, recent_.size());
  const int64_t least = *std::min_element(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(count));
  const auto batch_time = static_cast<int64_t>(static_cast<double>(batch()) / rate_ * 1e9);
  const int64_t high = base_ + std::max(kHighDelay, 2 * batch_time + kBatchSlack);
  if (least > high) {
    if (now - braked_ < least + kBrakePause) return;
    rate_ *= std::max(kLeastFactor, 1 - kBrake * (1 - static_cast<double>(high) / static_cast<double>(least)));
    braked_ = now;
  } else if (now - raised_ >= kMillisecond && least < base_ + kLowDelay) {
    rate_ += kRaise * line_;
    raised_ = now;
  }
}

void RateControl::FollowLoss(const Answered& answered, int64_t round_trip, int64_t now) {
  packets_ += answered.packets;
  lost_ += answered.lost;
  if (packets_ < kLossPackets || now - loss_braked_ < 2 * round_trip + kLossPause) return;
  const double loss = static_cast<double>(lost_) / static_cast<double>(packets_);
  if (loss > kLoss) rate_ *= std::max(kLeastFactor, 1 - loss);
  loss_braked_ = now;
  packets_ = lost_ = 0;
}

}  // namespace jaxcomm

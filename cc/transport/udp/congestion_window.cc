#include "cc/transport/udp/congestion_window.h"

#include <algorithm>

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kLowDelay = 2000 * kMicrosecond;   // of queues: wider below
constexpr int64_t kHighDelay = 5000 * kMicrosecond;  // narrower above
constexpr int64_t kStart = 16, kLeast = 4;           // packets
constexpr int64_t kMostRaise = 16;                   // packets a round, one more in each free round in a row
constexpr double kBrake = 0.8, kLeastFactor = 0.5;   // of the part above the high delay; of the window
constexpr double kLoss = 0.02;                       // narrower above, so that random loss alone does not slow down
constexpr double kLossBrake = 0.9;                   // or less, of the window
constexpr int64_t kLossPackets = 200;                // to judge by,
constexpr int64_t kLostPackets = 5;                  // or so many lost

}  // namespace

CongestionWindow::CongestionWindow(int64_t packet_bytes, int64_t most)
    : packet_bytes_(packet_bytes),
      least_(std::min(most, kLeast * packet_bytes)),
      most_(most),
      bytes_(std::clamp(kStart * packet_bytes, least_, most)),
      left_(bytes_) {}

void CongestionWindow::Take(const Answered& answered, int64_t round_trip, bool was_full) {
  base_ = std::min(base_, round_trip);
  shortest_ = std::min(shortest_, round_trip);
  was_full_ |= was_full;
  packets_ += answered.packets;
  lost_ += answered.lost;
  left_ -= answered.packets * packet_bytes_;
  if (left_ <= 0) EndRound();
}

void CongestionWindow::EndRound() {
  const int64_t before = bytes_;
  const double factor = std::min(DelayFactor(), LossFactor());
  if (factor < 1) {
    bytes_ = static_cast<int64_t>(factor * static_cast<double>(bytes_));
    has_queued_ = true;
    free_rounds_ = 0;
  } else if (shortest_ >= base_ + kLowDelay || static_cast<double>(lost_) > 1 + kLoss * static_cast<double>(packets_)) {
    has_queued_ = true;
    free_rounds_ = 0;
  } else if (was_full_) {
    ++free_rounds_;
    bytes_ += has_queued_ ? std::min(kMostRaise, free_rounds_) * packet_bytes_ : bytes_;
  }
  bytes_ = std::clamp(bytes_, least_, most_);
  left_ = std::max(before, bytes_);  // what is under way was sent before
  shortest_ = std::numeric_limits<int64_t>::max();
  was_full_ = false;
}

// By the round's shortest: a queue lasts, a thread that waited for its core is late once.
double CongestionWindow::DelayFactor() {
  const int64_t high = base_ + kHighDelay;
  if (shortest_ <= high) return 1;
  return std::max(kLeastFactor, 1 - kBrake * (1 - static_cast<double>(high) / static_cast<double>(shortest_)));
}

double CongestionWindow::LossFactor() {
  if (packets_ < kLossPackets && lost_ < kLostPackets) return 1;
  const double loss = static_cast<double>(lost_) / static_cast<double>(packets_);
  packets_ = lost_ = 0;
  return loss > kLoss ? std::clamp(1 - loss, kLeastFactor, kLossBrake) : 1;
}

}  // namespace jaxcomm

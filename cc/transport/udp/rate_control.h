// How fast packets go to one process: faster while they do not queue on their way, slower when they do or get lost.
//
//   while (rate.Allowance(now) > 0) { ... send up to rate.batch() bytes ...; rate.Spend(bytes); }
//   ... else again at rate.NextAt() ...
//   rate.Take(answered, round_trip, now);   // an answer has come
//
// The rate outlives a message: the next one starts with it. All times are nanoseconds of one clock. Not thread-safe.
// Source: MLT's delay-based control; its steps and bounds are changed to reach the rate of links of 0.1 to 10 Gbit/s,
// with a brake on loss beside them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cc/transport/udp/send_queue.h"

namespace jaxcomm {

class RateControl {
 public:
  explicit RateControl(int64_t packet_bytes) : packet_bytes_(packet_bytes) {}

  // Bytes that may go now, or none.
  int64_t Allowance(int64_t now);
  void Spend(int64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  int64_t NextAt() const;
  // Bytes to send at once: a quarter of a millisecond's, as a larger burst would be a queue of its own.
  int64_t batch() const;

  // `round_trip`: without the time that the receiver took.
  void Take(const Answered& answered, int64_t round_trip, int64_t now);

  double rate() const { return rate_; }  // bytes per second

 private:
  void Measure(const Answered& answered, int64_t now);
  void FollowDelay(int64_t round_trip, int64_t now);
  void FollowLoss(const Answered& answered, int64_t round_trip, int64_t now);

  const int64_t packet_bytes_;
  double rate_ = kStart, tokens_ = 0;
  int64_t filled_ = 0;                                  // when tokens_ was
  int64_t base_ = std::numeric_limits<int64_t>::max();  // the shortest round trip
  std::array<int64_t, 4> recent_ = {};                  // round trips
  size_t next_recent_ = 0;
  double line_ = kLeastLine;                           // bytes per second: the most that has come
  int64_t measured_ = 0, measured_bytes_ = 0;          // since then, so many have come
  int64_t braked_ = 0, raised_ = 0, loss_braked_ = 0;  // when
  int64_t packets_ = 0, lost_ = 0;                     // since the last look at the loss

  static constexpr double kStart = 1.25e9, kLeast = 0.6e6, kMost = 12.5e9, kLeastLine = 12.5e6;
};

}  // namespace jaxcomm

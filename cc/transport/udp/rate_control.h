// The rate of packets to one process: it grows while they do not queue on their way, and falls when they do or get
// lost.
//
//   while (rate.Allowance(now) > 0) { ... send up to rate.batch() bytes ...; rate.Spend(bytes); }
//   ... else again at rate.NextAt() ...
//   rate.Take(answered, trip, now);   // an answer has come
//   rate.Pause(now);                  // there was nothing to send until now
//
// The rate outlives a message: the next one starts with it. Times are nanoseconds of one clock, unless noted.
// Not thread-safe.
// Source: MLT's delay-based control. Changed: it follows the packets' way and not the round trip, as an answer queues
// behind what goes the other way; it slows down from the rate at which bytes come, which cannot fall below this flow's
// part of the line while packets queue; there is a brake on loss; and while other flows keep the queue full, as TCP
// does, only loss slows it down, as it does TCP, with which it then shares the line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "cc/transport/udp/send_queue.h"

namespace jaxcomm {

// The time that the newest packet of an answer took.
struct Trip {
  int64_t round;  // there and back, without the time that the receiver took
  // Microseconds, modulo 2^32, of the sender's clock and of the receiver's, which may differ.
  uint32_t sent, came;
};

class RateControl {
 public:
  static constexpr int64_t kBatchTime = 250000;

  explicit RateControl(int64_t packet_bytes) : packet_bytes_(packet_bytes) {}

  // Bytes that may go now, or none; a little less than a batch, so that flows which are due at nearly one time go at
  // once.
  int64_t Allowance(int64_t now);
  void Spend(int64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  int64_t NextAt() const;
  // Bytes to send at once, kBatchTime's: a larger burst would be a queue of its own, smaller ones take more of the
  // processors.
  int64_t batch() const;

  void Take(const Answered& answered, const Trip& trip, int64_t now);
  // This time does not count in the measured rate of arrivals, and flows that had left the line may be back, as
  // processes begin their messages together.
  void Pause(int64_t now);

  double rate() const { return rate_; }  // bytes per second

 private:
  // The measured arrivals in bytes per second, if there is a new measurement.
  std::optional<double> Measure(const Answered& answered, uint32_t came);
  int64_t Queued(const Trip& trip, int64_t now);
  void FollowQueue(int64_t queued, std::optional<double> coming, int64_t now);
  void Raise(double step, int64_t now);
  void FollowOthers(int64_t excess, int64_t passed);
  void FollowLoss(const Answered& answered, int64_t round_trip, int64_t now);

  int64_t packet_bytes_;
  double rate_ = kStart, tokens_ = 0;
  int64_t filled_ = 0;       // when tokens_ was
  bool is_starting_ = true;  // no packet has queued or been lost yet
  int64_t least_round_ = std::numeric_limits<int64_t>::max();
  // The shortest way of this period and of the one before, which ended at `period_`: clocks drift.
  std::optional<uint32_t> least_way_, earlier_least_way_;
  int64_t period_ = 0;
  std::array<int64_t, 2> queued_ = {};  // by the newest answers
  size_t answers_ = 0;
  std::optional<uint32_t> measured_;  // by the receiver's clock
  int64_t measured_bytes_ = 0;        // that have come since
  // Bytes per second that come, by the newest measurements.
  std::array<double, 4> coming_ = {};
  size_t measurements_ = 0;
  double best_ = 0, earlier_best_ = 0;  // at which they have come, four measurements on end, of the same periods
  double usual_ = 0;                    // the rate without bandwidth freed by other flows
  int64_t usual_until_ = 0;             // as long as that counts
  int64_t empty_for_ = 0, full_for_ = 0, gone_for_ = 0, looked_ = 0;  // the queue, by the looks at it
  bool contends_ = false;                                             // other flows keep it full
  bool has_yielded_ = false;                                          // to a loss since
  int64_t raised_ = 0, loss_braked_ = 0;                              // when
  int64_t packets_ = 0, lost_ = 0;                                    // since the last look at the loss

  static constexpr double kStart = 125e6, kLeast = 0.6e6, kMost = 12.5e9;
};

}  // namespace jaxcomm

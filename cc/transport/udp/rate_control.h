// Controls the rate of packets to one process. The rate rises while packets do not queue in the network, and falls when
// packets queue or get lost.
//
//   while (rate.Allowance(now) > 0) { ... send up to rate.batch() bytes ...; rate.Spend(bytes); }
//   ... try again at rate.NextAt() ...
//   rate.Take(answered, trip, now);   // an acknowledgement arrived
//   rate.Pause(now);                  // there was nothing to send until now
//
// A message starts with the rate of the previous message. Times are in nanoseconds of one clock, unless noted
// otherwise. Not thread-safe.
// Source: the delay-based control of MLT (see datagrams.h). This control differs as follows:
// - The rate follows the one-way delay instead of the RTT, because acknowledgements queue behind reverse traffic.
// - Slow-downs start from the arrival rate. While packets queue, the arrival rate cannot fall below this flow's share
//   of the line.
// - Loss slows the flow down.
// - While other flows, such as TCP, keep the queue full, only loss slows this flow down, so that it shares the line
//   with TCP.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "cc/transport/udp/send_queue.h"

namespace jaxcomm {

// The shortest delays that have been measured. Delays beyond these are times in queues.
struct ShortestDelays {
  int64_t round = std::numeric_limits<int64_t>::max();  // RTT without the time that the receiver took to acknowledge
  std::optional<uint32_t> way;                          // one-way delay, as `came` - `sent` in Trip

  void Include(const ShortestDelays& other);
};

// The times measured for the newest packet that an acknowledgement reports.
struct Trip {
  int64_t round;  // RTT without the time that the receiver took to acknowledge
  // In microseconds modulo 2^32: `sent` by the sender's clock, `came` by the receiver's clock. The clocks may differ.
  uint32_t sent, came;
  // With several paths: the shortest delays of all of them. A path whose queue has never been empty would otherwise
  // count its queueing delay as part of its shortest delay.
  ShortestDelays shortest = {};
};

class RateControl {
 public:
  static constexpr int64_t kBatchTime = 250000;

  // `paths`: number of paths to the process. Several paths may share a link. The initial rate, the minimum rate and the
  // steps up are therefore divided among the paths, and a path never mistakes the other paths for TCP flows.
  explicit RateControl(int64_t packet_bytes, size_t paths = 1)
      : packet_bytes_(packet_bytes), paths_(static_cast<double>(paths)) {}

  // Returns the number of bytes that may be sent now, or 0 if this number is less than 3/4 of a batch. If the minimum
  // were a whole batch, flows that become due at nearly the same time would not send together.
  int64_t Allowance(int64_t now);
  void Spend(int64_t bytes) { tokens_ -= static_cast<double>(bytes); }
  int64_t NextAt() const;
  // Returns the number of bytes to send at once: the bytes sent in kBatchTime at the current rate. A larger burst would
  // queue in the network. Smaller bursts would cost more CPU time.
  int64_t batch() const;

  void Take(const Answered& answered, const Trip& trip, int64_t now);
  // Excludes the pause from the measured arrival rate. Also gives up the bandwidth that other flows had freed, because
  // these flows usually start their next messages at the same time as this flow.
  void Pause(int64_t now);

  double rate() const { return rate_; }  // bytes per second
  ShortestDelays shortest() const;

 private:
  // Returns the arrival rate in bytes per second if there is a new measurement.
  std::optional<double> Measure(const Answered& answered, uint32_t came);
  int64_t Queued(const Trip& trip, int64_t now);
  void FollowQueue(int64_t queued, std::optional<double> coming, int64_t now);
  void Raise(double step, int64_t now);
  void FollowOthers(int64_t excess, int64_t passed);
  void FollowLoss(const Answered& answered, int64_t round_trip, int64_t now);

  int64_t packet_bytes_;
  double paths_;
  double rate_ = kStart / paths_, tokens_ = 0;
  int64_t filled_ = 0;       // when Allowance last added to tokens_
  bool is_starting_ = true;  // no packet has queued or been lost yet
  int64_t least_round_ = std::numeric_limits<int64_t>::max();
  // Minimum one-way delays of the current period, which began at period_, and of the previous period. Older delays do
  // not count, because clocks drift.
  std::optional<uint32_t> least_way_, earlier_least_way_;
  int64_t period_ = 0;
  std::array<int64_t, 2> queued_ = {};  // the two newest measured queueing delays
  size_t answers_ = 0;
  std::optional<uint32_t> measured_;  // time of the last measurement, by the receiver's clock
  int64_t measured_bytes_ = 0;        // bytes that have arrived since `measured_`
  // The newest measured arrival rates, in bytes per second.
  std::array<double, 4> coming_ = {};
  size_t measurements_ = 0;
  // The highest arrival rate that four successive measurements all reached: in the current and in the previous period.
  double best_ = 0, earlier_best_ = 0;
  double usual_ = 0;         // the rate without bandwidth freed by other flows
  int64_t usual_until_ = 0;  // until this time, a pause lowers the rate to usual_
  // How long the queue has been empty (empty_for_), full (full_for_), or within its target delay (gone_for_).
  // `looked_`: when these times were last updated.
  int64_t empty_for_ = 0, full_for_ = 0, gone_for_ = 0, looked_ = 0;
  bool contends_ = false;                 // other flows keep the queue full
  bool has_yielded_ = false;              // a loss has slowed this flow down while contends_ was true
  int64_t raised_ = 0, loss_braked_ = 0;  // times of the last step up and of the last decision about loss
  int64_t packets_ = 0, lost_ = 0;        // packets reported and packets lost since the last loss measurement

  static constexpr double kStart = 125e6, kLeast = 0.6e6, kMost = 12.5e9;
};

}  // namespace jaxcomm

#include "cc/transport/udp/rate_control.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr double kDepth = 1e-3;                      // seconds of the rate that may go at once after a pause
constexpr int64_t kMaxBatch = 60000;                 // bytes: one datagram to be cut by the kernel
constexpr int64_t kQueue = 500 * kMicrosecond;       // faster if packets wait for less, slower if for more
constexpr int64_t kBatchSlack = 300 * kMicrosecond;  // above the wait that two batches make by themselves
constexpr double kRaise = 4e3;  // bytes per second: faster, each millisecond, by the root of this times the rate
// One more such step for each millisecond that packets have waited for less than kEmpty, after this many milliseconds:
// other flows have left the line. The rate without these steps counts for this long after the last one.
constexpr double kMostRaise = 0.1;  // of the rate
constexpr int64_t kEmpty = 300 * kMicrosecond, kEmptyFor = 2 * kMillisecond, kUsualFor = 100 * kMillisecond;
constexpr double kUsed = 0.7;                 // faster only where this part of the rate is used
constexpr double kDrain = 12 * kMillisecond;  // in which a queue must be gone
constexpr double kLeastFactor = 0.5;          // of the rate at which bytes come, or of the rate if packets get lost
constexpr int64_t kFull = 4 * kMillisecond;   // if packets wait for more, no slower than
constexpr double kFloor = 0.25;               // of the best rate at which they have come
// Other flows keep the queue full if packets have waited this much longer than they may, all the time for this long;
// until there is no queue for this long.
constexpr int64_t kOthers = 2 * kMillisecond, kFullFor = 100 * kMillisecond, kGoneFor = 150 * kMillisecond;
constexpr int64_t kMostBetween = 5 * kMillisecond;  // of that which counts from one answer to the next
// Then, at a loss, down to a part of the rate as CUBIC, and from the first one on smaller steps up.
constexpr double kContendFactor = 0.7, kContendRaise = 1.0 / 16;
constexpr int64_t kMeasure = 1000;     // microseconds, at least, or
constexpr int64_t kShortMeasure = 50;  // if enough bytes have come
constexpr int64_t kMeasureBytes = 128 << 10;
constexpr int64_t kPeriod = 5000 * kMillisecond;  // of the shortest way
constexpr double kDue = 0.75;                     // of a batch
constexpr double kLoss = 0.01;                    // slower above, so that random loss alone does not slow down
constexpr int64_t kLossPackets = 200;             // to judge by
constexpr int64_t kLossPause = 2 * kMillisecond;  // beside round trips

// Of two times modulo 2^32.
int32_t Difference(uint32_t later, uint32_t earlier) { return static_cast<int32_t>(later - earlier); }

}  // namespace

int64_t RateControl::Allowance(int64_t now) {
  const double most = std::max(rate_ * kDepth, 2.0 * static_cast<double>(batch()));
  tokens_ = std::min(most, tokens_ + 1e-9 * static_cast<double>(std::max<int64_t>(0, now - filled_)) * rate_);
  filled_ = now;
  // Several flows that are due at nearly one time go at once.
  return tokens_ >= kDue * static_cast<double>(batch()) ? static_cast<int64_t>(tokens_) : 0;
}

int64_t RateControl::NextAt() const {
  return filled_ + static_cast<int64_t>(std::ceil(std::max(0.0, static_cast<double>(batch()) - tokens_) / rate_ * 1e9));
}

int64_t RateControl::batch() const {
  return std::max(packet_bytes_,
                  std::min(kMaxBatch, static_cast<int64_t>(rate_ * 1e-9 * static_cast<double>(kBatchTime))));
}

void RateControl::Take(const Answered& answered, const Trip& trip, int64_t now) {
  const std::optional<double> coming = Measure(answered, trip.came);
  FollowQueue(Queued(trip, now), coming, now);
  FollowLoss(answered, trip.round, now);
  rate_ = std::clamp(rate_, kLeast, kMost);
}

void RateControl::Pause(int64_t now) {
  measured_.reset();
  empty_for_ = 0;
  if (looked_ < usual_until_) rate_ = std::min(rate_, usual_);
  usual_until_ = 0;
  looked_ = now;
}

// By the receiver's clock, as answers may come in bursts.
std::optional<double> RateControl::Measure(const Answered& answered, uint32_t came) {
  const int64_t since = measured_ ? Difference(came, *measured_) : -1;
  measured_bytes_ += answered.bytes;
  if (since >= 0 && since < (measured_bytes_ < kMeasureBytes ? kMeasure : kShortMeasure)) return std::nullopt;
  const auto bytes = static_cast<double>(std::exchange(measured_bytes_, 0));
  measured_ = came;
  if (since < 0) return std::nullopt;
  const double coming = 1e6 * bytes / static_cast<double>(since);
  coming_[measurements_++ % coming_.size()] = coming;
  return coming;
}

// The wait of packets on their way: their time beyond the shortest one. After a clock has been set, the round trip is
// more exact.
int64_t RateControl::Queued(const Trip& trip, int64_t now) {
  // While others keep the queue full, the wait in it would be taken for the way.
  if (now - period_ >= kPeriod && !contends_) {
    earlier_least_way_ = std::exchange(least_way_, std::nullopt);
    earlier_best_ = std::exchange(best_, 0);
    period_ = now;
  }
  const uint32_t way = trip.came - trip.sent;
  if (!least_way_ || Difference(way, *least_way_) < 0) least_way_ = way;
  int64_t beside = Difference(way, *least_way_);
  if (earlier_least_way_) beside = std::max<int64_t>(beside, Difference(way, *earlier_least_way_));
  least_round_ = std::min(least_round_, trip.round);
  // A queue lasts; a thread that waited for its core is late once.
  queued_[answers_++ % queued_.size()] = std::min(beside * kMicrosecond, trip.round - least_round_);
  return answers_ == 1 ? 0 : *std::min_element(queued_.begin(), queued_.end());
}

// Each flow takes its steps up also while packets queue, so that of the flows on a line the slow ones gain.
void RateControl::FollowQueue(int64_t queued, std::optional<double> coming, int64_t now) {
  const auto batch_time = static_cast<int64_t>(static_cast<double>(batch()) / rate_ * 1e9);
  const int64_t excess = queued - std::max(kQueue, 2 * batch_time + kBatchSlack);
  if (excess > 0) is_starting_ = false;
  const double best = std::max(best_, earlier_best_);
  const int64_t passed = std::min(kMostBetween, now - std::exchange(looked_, now));
  FollowOthers(excess, passed);
  // The queue shows nothing on a line that drops packets before they wait, or if they waited on the shortest way.
  const bool loses = static_cast<double>(lost_) > std::max(2.0, 2 * kLoss * static_cast<double>(packets_));
  empty_for_ = queued < kEmpty && !loses ? empty_for_ + passed : 0;
  const double step = std::sqrt(rate_ * kRaise) * (contends_ && has_yielded_ ? kContendRaise : 1);
  if (coming && !loses && *coming > kUsed * rate_ && (is_starting_ || now - raised_ >= kMillisecond)) Raise(step, now);
  // The most, as a sender that waits for its core sends less for once.
  const double most = *std::max_element(coming_.begin(), coming_.end());
  best_ = std::max(best_, *std::min_element(coming_.begin(), coming_.end()));
  if (excess <= 0 || most == 0 || contends_) return;
  const double slower = step + most * std::max(kLeastFactor, 1 - static_cast<double>(excess) / kDrain);
  rate_ = std::min(rate_, queued > kFull ? std::max(slower, kFloor * best) : slower);
}

void RateControl::Raise(double step, int64_t now) {
  raised_ = now;
  usual_ += step;
  if (!is_starting_ && !contends_ && empty_for_ > kEmptyFor) {
    if (now >= usual_until_) usual_ = rate_ + step;
    usual_until_ = now + kUsualFor;
    const double steps = 1 + static_cast<double>(empty_for_ - kEmptyFor) / kMillisecond;
    step = std::max(step, std::min(step * steps, kMostRaise * rate_));
  }
  rate_ += is_starting_ ? rate_ : step;
}

// A queue that stays although this flow slows down is kept full by other flows, as by TCP; they would take all the
// line. Then only loss slows this flow down, as it does them.
void RateControl::FollowOthers(int64_t excess, int64_t passed) {
  full_for_ = excess > kOthers ? full_for_ + passed : 0;
  gone_for_ = excess <= 0 ? gone_for_ + passed : 0;
  has_yielded_ = has_yielded_ && contends_;
  contends_ = full_for_ >= kFullFor || (contends_ && gone_for_ < kGoneFor);
}

void RateControl::FollowLoss(const Answered& answered, int64_t round_trip, int64_t now) {
  if (contends_) {
    packets_ = lost_ = 0;
    if (answered.lost == 0 || now - loss_braked_ < round_trip + kLossPause) return;
    rate_ *= kContendFactor;
    has_yielded_ = true;
    loss_braked_ = now;
    return;
  }
  packets_ += answered.packets;
  lost_ += answered.lost;
  if (packets_ < kLossPackets || now - loss_braked_ < 2 * round_trip + kLossPause) return;
  const double loss = static_cast<double>(lost_) / static_cast<double>(packets_);
  if (loss > kLoss) {
    rate_ *= std::max(kLeastFactor, 1 - loss);
    is_starting_ = false;
  }
  loss_braked_ = now;
  packets_ = lost_ = 0;
}

}  // namespace jaxcomm

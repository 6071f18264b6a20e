#include "cc/transport/udp/rate_control.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace jaxcomm {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr double kDepth = 1e-3;                 // maximum burst after a pause, in seconds at the current rate
constexpr int64_t kMaxBatch = 60000;            // bytes: the kernel can take a batch as one datagram, and split it
constexpr int64_t kQueue = 500 * kMicrosecond;  // target queueing delay; a longer delay lowers the rate
constexpr int64_t kMostPathQueue = 10 * kMillisecond;  // with several paths, the longest tolerated delay of two batches
constexpr int64_t kBatchSlack = 300 * kMicrosecond;    // delay that is tolerated in addition to two batches
constexpr double kRaise = 4e3;      // bytes per second; each millisecond the rate rises by sqrt(kRaise * rate)
constexpr int64_t kMostSteps = 16;  // with several paths, the largest number of steps at once
constexpr double kMostRaise = 0.1;  // the largest of the larger steps below, as a share of the rate
// If queueing delays stay below kEmpty for kEmptyFor, other flows have left the line. From then on, the step by which
// the rate rises grows by its original size every millisecond. A pause undoes these larger steps if it begins within
// kUsualFor of the last larger step.
constexpr int64_t kEmpty = 300 * kMicrosecond, kEmptyFor = 2 * kMillisecond, kUsualFor = 100 * kMillisecond;
constexpr double kUsed = 0.7;  // the rate rises only if more than this share of the rate arrives
// Time within which a queue must drain, with one path and with several paths. The time for several paths is longer,
// because paths that share a link slow down together, and gain little with each step up.
constexpr double kDrain = 12 * kMillisecond, kPathDrain = 40 * kMillisecond;
// A slow-down leaves at least this share of the arrival rate. A slow-down after a loss leaves at least this share of
// the rate.
constexpr double kLeastFactor = 0.5;
constexpr int64_t kFull = 4 * kMillisecond;  // queueing delay; while it is exceeded, kFloor limits slow-downs
constexpr double kFloor = 0.25;  // minimum rate while the delay exceeds kFull, as a share of the best arrival rate
// Other flows count as keeping the queue full once the delay has exceeded its target by kOthers for all of kFullFor.
// These flows count as gone once the delay has met its target for all of kGoneFor.
constexpr int64_t kOthers = 2 * kMillisecond, kFullFor = 100 * kMillisecond, kGoneFor = 150 * kMillisecond;
constexpr int64_t kMostBetween = 5 * kMillisecond;  // a longer time between two acknowledgements counts as this time
// While other flows keep the queue full, a loss multiplies the rate by kContendFactor, as in CUBIC. After such a loss,
// steps up are multiplied by kContendRaise.
constexpr double kContendFactor = 0.7, kContendRaise = 1.0 / 16;
constexpr int64_t kMeasure = 1000;     // microseconds: the shortest measurement
constexpr int64_t kShortMeasure = 50;  // microseconds: the shortest measurement of kMeasureBytes or more
constexpr int64_t kPathMeasure =
    20000;  // microseconds: with several paths, the shortest measurement of fewer than kPathMeasurePackets
constexpr int64_t kPathMeasurePackets = 8;
constexpr int64_t kMeasureBytes = 128 << 10;
constexpr int64_t kPeriod = 5000 * kMillisecond;  // time after which the minimum one-way delay is measured anew
constexpr double kDue = 0.75;                     // share of a batch that must be allowed before bytes are sent
constexpr double kLoss = 0.01;         // tolerated share of lost packets: random loss alone does not reduce the rate
constexpr int64_t kLossPackets = 200;  // packets in one loss measurement
constexpr int64_t kLossPause = 2 * kMillisecond;  // decisions about loss are at least this time plus 1 or 2 RTTs apart

// Returns later - earlier. Both times are modulo 2^32.
int32_t Difference(uint32_t later, uint32_t earlier) { return static_cast<int32_t>(later - earlier); }

}  // namespace

int64_t RateControl::Allowance(int64_t now) {
  const double most = std::max(rate_ * kDepth, 2.0 * static_cast<double>(batch()));
  tokens_ = std::min(most, tokens_ + 1e-9 * static_cast<double>(std::max<int64_t>(0, now - filled_)) * rate_);
  filled_ = now;
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
  rate_ = std::clamp(rate_, kLeast / paths_, kMost);
}

ShortestDelays RateControl::shortest() const {
  ShortestDelays found{least_round_, least_way_};
  found.Include({least_round_, earlier_least_way_});
  return found;
}

void ShortestDelays::Include(const ShortestDelays& other) {
  round = std::min(round, other.round);
  if (!way || (other.way && Difference(*other.way, *way) < 0)) way = other.way;
}

void RateControl::Pause(int64_t now) {
  measured_.reset();
  empty_for_ = 0;
  if (looked_ < usual_until_) rate_ = std::min(rate_, usual_);
  usual_until_ = 0;
  looked_ = now;
}

// Measures the arrival rate by the receiver's clock, because acknowledgements may arrive in bursts.
std::optional<double> RateControl::Measure(const Answered& answered, uint32_t came) {
  const int64_t since = measured_ ? Difference(came, *measured_) : -1;
  measured_bytes_ += answered.bytes;
  // One of several paths may be so slow that a short measurement would cover only one packet.
  if (paths_ > 1 && since >= 0 && since < kPathMeasure && measured_bytes_ < kPathMeasurePackets * packet_bytes_) {
    return std::nullopt;
  }
  if (since >= 0 && since < (measured_bytes_ < kMeasureBytes ? kMeasure : kShortMeasure)) return std::nullopt;
  const auto bytes = static_cast<double>(std::exchange(measured_bytes_, 0));
  measured_ = came;
  if (since < 0) return std::nullopt;
  const double coming = 1e6 * bytes / static_cast<double>(since);
  coming_[measurements_++ % coming_.size()] = coming;
  return coming;
}

// Returns the queueing delay: the excess of the one-way delay over its minimum, or the excess of the RTT over its
// minimum, whichever is smaller. The RTT limits the error after a clock has been set, which changes only the one-way
// delay.
int64_t RateControl::Queued(const Trip& trip, int64_t now) {
  // No period ends while other flows keep the queue full, because the new minimum delay would include their queue.
  if (now - period_ >= kPeriod && !contends_) {
    earlier_least_way_ = std::exchange(least_way_, std::nullopt);
    earlier_best_ = std::exchange(best_, 0);
    period_ = now;
  }
  const uint32_t way = trip.came - trip.sent;
  if (!least_way_ || Difference(way, *least_way_) < 0) least_way_ = way;
  int64_t beside = Difference(way, *least_way_);
  if (earlier_least_way_) beside = std::max<int64_t>(beside, Difference(way, *earlier_least_way_));
  if (trip.shortest.way) beside = std::max<int64_t>(beside, Difference(way, *trip.shortest.way));
  least_round_ = std::min({least_round_, trip.round, trip.shortest.round});
  // The smaller of the two newest delays counts: a queue delays several packets, but a thread that waited for its core
  // delays only one packet.
  queued_[answers_++ % queued_.size()] = std::min(beside * kMicrosecond, trip.round - least_round_);
  return answers_ == 1 ? 0 : *std::min_element(queued_.begin(), queued_.end());
}

// Adjusts the rate to the queue. Raises the rate by steps even while packets queue, so that slow flows gain bandwidth
// on a shared line.
void RateControl::FollowQueue(int64_t queued, std::optional<double> coming, int64_t now) {
  const auto batch_time = static_cast<int64_t>(static_cast<double>(batch()) / rate_ * 1e9);
  const int64_t batches = paths_ == 1 ? 2 * batch_time : std::min(2 * batch_time, kMostPathQueue);
  const int64_t target = std::max(kQueue, batches + kBatchSlack), excess = queued - target;
  if (excess > 0) is_starting_ = false;
  const double best = std::max(best_, earlier_best_);
  const int64_t passed = std::min(kMostBetween, now - std::exchange(looked_, now));
  FollowOthers(excess, passed);
  // Loss also shows that the line is full. The delay alone may not show it: some lines drop packets without queueing,
  // and the minimum delay may include a queue.
  const bool loses = static_cast<double>(lost_) > std::max(2.0, 2 * kLoss * static_cast<double>(packets_));
  empty_for_ = queued < kEmpty && !loses ? empty_for_ + passed : 0;
  double step = std::sqrt(rate_ * kRaise / paths_) * (contends_ && has_yielded_ ? kContendRaise : 1);
  // If there are several paths, each is measured less often than every millisecond. A path makes up for this with
  // larger steps while its queue is short.
  if (paths_ > 1 && 2 * queued < target) {
    step *= static_cast<double>(std::clamp<int64_t>((now - raised_) / kMillisecond, 1, kMostSteps));
  }
  if (coming && !loses && *coming > kUsed * rate_ && (is_starting_ || now - raised_ >= kMillisecond)) Raise(step, now);
  // Slow-downs start from the largest recent arrival rate, because a sender briefly sends less while its thread waits
  // for a core.
  const double most = *std::max_element(coming_.begin(), coming_.end());
  best_ = std::max(best_, *std::min_element(coming_.begin(), coming_.end()));
  if (excess <= 0 || most == 0 || contends_) return;
  const double drain = paths_ == 1 ? kDrain : kPathDrain;
  const double slower = step + most * std::max(kLeastFactor, 1 - static_cast<double>(excess) / drain);
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

// Finds out whether other flows keep the queue full. If so, the queue persists although this flow slows down. Such
// flows, for example TCP, would take the whole line from a flow that yields. While such flows fill the queue, this flow
// therefore slows down only after a loss, as TCP does.
void RateControl::FollowOthers(int64_t excess, int64_t passed) {
  full_for_ = excess > kOthers ? full_for_ + passed : 0;
  gone_for_ = excess <= 0 ? gone_for_ + passed : 0;
  has_yielded_ = has_yielded_ && contends_;
  contends_ = (paths_ == 1 && full_for_ >= kFullFor) || (contends_ && gone_for_ < kGoneFor);
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

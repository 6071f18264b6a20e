#include "cc/executor/trial.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace jaxcomm {
namespace {

constexpr double kLeast = 0.005;      // of a transfer or a cycle that a plan must save or lose to count
constexpr double kErrors = 2.0;       // standard errors likewise
constexpr double kClearErrors = 4.0;  // where the trial ends early
constexpr double kTrimmed = 0.1;      // of the times at either end, which count as the next ones do not
constexpr double kChanged = 1.2;      // times as long or as short, from which on another trial is due

// By pair of calls, whether it runs the default schedule. Found by search: of the calls of a trial that a period of 2
// to 20 calls, half of them late, makes late, the two schedules get numbers that differ by 7 at most.
constexpr uint32_t kTurns = 0xad4aa556;

struct Mean {
  double mean, error;
};

// The trimmed mean, which a few long calls do not change, and its standard error. Unlike the median it is right where
// times have two values, as with a rank that is late in every other step.
Mean MeanOf(const std::deque<double>& times) {
  std::vector<double> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t count = sorted.size(), cut = static_cast<size_t>(kTrimmed * static_cast<double>(count));
  const auto kept = static_cast<double>(count - 2 * cut);
  double sum = 0, all = 0, squares = 0;
  for (size_t i = cut; i < count - cut; ++i) sum += sorted[i];
  for (size_t i = 0; i < count; ++i) all += sorted[std::clamp(i, cut, count - cut - 1)];
  for (size_t i = 0; i < count; ++i) {
    const double deviation = sorted[std::clamp(i, cut, count - cut - 1)] - all / static_cast<double>(count);
    squares += deviation * deviation;
  }
  const double spread = std::sqrt(squares / static_cast<double>(count - 1));
  return {sum / kept, spread * std::sqrt(static_cast<double>(count)) / kept};
}

void Keep(std::deque<double>& times, double seconds, size_t most) {
  if (seconds < 0) return;
  times.push_back(seconds);
  if (times.size() > most) times.pop_front();
}

}  // namespace

bool Trial::RunsDefault(uint32_t call) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (outcome_ != Outcome::kOpen) return outcome_ == Outcome::kDropped;
  return (kTurns >> (call / 2 % 32) & 1) != 0;
}

void Trial::Record(bool is_default, Times times) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (outcome_ != Outcome::kOpen) {
    ++since_;
    return Keep(latest_, times.transfer, kCalls);
  }
  Schedule& schedule = schedules_[is_default ? 1 : 0];
  Keep(schedule.transfers, times.transfer, kCalls);
  Keep(schedule.cycles, times.cycle, kCalls);
}

double Trial::Difference::least() const { return std::max(kLeast * usual, kErrors * error); }

Trial::Difference Trial::Compare(const std::deque<double>& planned, const std::deque<double>& usual) {
  const Mean one = MeanOf(planned), other = MeanOf(usual);
  return {one.mean, other.mean, std::hypot(one.error, other.error)};
}

Trial::Outcome Trial::Decide() {
  std::lock_guard<std::mutex> lock(mutex_);
  decides_ = true;
  if (outcome_ != Outcome::kOpen) {
    if (since_ >= kPause && since_ % static_cast<int64_t>(kCalls) == 0 && HasChanged()) Set(Outcome::kOpen);
    return outcome_;
  }
  const size_t count = std::min(planned().transfers.size(), usual().transfers.size());
  if (count < kClear) return outcome_;
  const Difference transfer = Compare(planned().transfers, usual().transfers);
  if (count < kCalls && std::abs(transfer.gain()) < kClearErrors * transfer.error) return outcome_;
  std::vector<Difference> differences{transfer};
  if (std::min(planned().cycles.size(), usual().cycles.size()) >= kClear) {
    differences.push_back(Compare(planned().cycles, usual().cycles));
  }
  const auto gains = [](const Difference& it) { return it.gain() > it.least(); };
  const auto loses = [](const Difference& it) { return -it.gain() > it.least(); };
  const bool is_kept = std::any_of(differences.begin(), differences.end(), gains) &&
                       std::none_of(differences.begin(), differences.end(), loses);
  Set(is_kept ? Outcome::kKept : Outcome::kDropped);
  return outcome_;
}

void Trial::Follow(Outcome outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (outcome != outcome_) Set(outcome);
}

// In both halves of the latest calls.
bool Trial::HasChanged() const {
  if (latest_.size() < kCalls) return false;
  const double then = MeanOf(outcome_ == Outcome::kKept ? planned().transfers : usual().transfers).mean;
  const auto middle = latest_.begin() + static_cast<std::ptrdiff_t>(kCalls / 2);
  const double one = MeanOf({latest_.begin(), middle}).mean, other = MeanOf({middle, latest_.end()}).mean;
  return std::min(one, other) > kChanged * then || kChanged * std::max(one, other) < then;
}

void Trial::Set(Outcome outcome) {
  outcome_ = outcome;
  latest_.clear();
  since_ = 0;
  if (outcome == Outcome::kOpen) schedules_ = {};
  trials_ += outcome != Outcome::kOpen ? 1 : 0;
}

Trial::Outcome Trial::outcome() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return outcome_;
}

bool Trial::has_begun() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return HasBegun();
}

bool Trial::HasBegun() const { return std::min(planned().transfers.size(), usual().transfers.size()) >= 2; }

void Trial::WriteJson(std::ostream& out) const {
  static constexpr const char* kNames[] = {"open", "kept", "dropped"};
  std::lock_guard<std::mutex> lock(mutex_);
  if (!HasBegun()) return;
  const Difference transfer = Compare(planned().transfers, usual().transfers);
  out << ",\"trial\":{\"outcome\":\"" << kNames[static_cast<size_t>(outcome_)]
      << "\",\"decided_here\":" << (decides_ ? "true" : "false") << ",\"trials\":" << trials_ << ",\"calls\":["
      << planned().transfers.size() << "," << usual().transfers.size() << "],\"plan_s\":" << transfer.planned
      << ",\"default_s\":" << transfer.usual << ",\"error_s\":" << transfer.error;
  if (planned().cycles.size() >= 2 && usual().cycles.size() >= 2) {
    const Difference cycle = Compare(planned().cycles, usual().cycles);
    out << ",\"plan_cycle_s\":" << cycle.planned << ",\"default_cycle_s\":" << cycle.usual;
  }
  out << "}";
}

}  // namespace jaxcomm

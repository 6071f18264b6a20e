#include "cc/executor/decide/trial.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cc/executor/decide/comparison.h"

namespace jaxcomm {
namespace {

// The trial ends early if the two schedules' transfers differ by at least this number of standard errors.
constexpr double kClearErrors = 4.0;
// Another trial is due if transfers have become longer or shorter by more than this factor.
constexpr double kChanged = 1.2;

// Bit i: whether the i-th pair of calls runs the default schedule. A search found this order. If lateness has a period
// of 2 to 20 calls and half of each period's calls are late, one schedule gets at most 7 more late calls in a trial
// than the other schedule.
constexpr uint32_t kTurns = 0xad4aa556;

Comparison CompareTimes(const std::deque<double>& planned, const std::deque<double>& usual) {
  return Compare({planned.begin(), planned.end()}, {usual.begin(), usual.end()});
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

Trial::Outcome Trial::Decide() {
  std::lock_guard<std::mutex> lock(mutex_);
  decides_ = true;
  if (outcome_ != Outcome::kOpen) {
    if (since_ >= kPause && since_ % static_cast<int64_t>(kCalls) == 0 && HasChanged()) Set(Outcome::kOpen);
    return outcome_;
  }
  const size_t count = std::min(planned().transfers.size(), usual().transfers.size());
  if (count < kClear) return outcome_;
  const Comparison transfer = CompareTimes(planned().transfers, usual().transfers);
  const double difference = std::abs(transfer.first - transfer.second);
  if (count < kCalls && difference < kClearErrors * transfer.error) return outcome_;
  std::vector<Comparison> compared{transfer};
  if (std::min(planned().cycles.size(), usual().cycles.size()) >= kClear) {
    compared.push_back(CompareTimes(planned().cycles, usual().cycles));
  }
  const auto is_shorter = [](const Comparison& plan) { return plan.IsShorter(); };
  const auto is_longer = [](const Comparison& plan) { return plan.IsLonger(); };
  const bool is_kept = std::any_of(compared.begin(), compared.end(), is_shorter) &&
                       std::none_of(compared.begin(), compared.end(), is_longer);
  Set(is_kept ? Outcome::kKept : Outcome::kDropped);
  return outcome_;
}

void Trial::Follow(Outcome outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (outcome != outcome_) Set(outcome);
}

// Whether transfers now take more time or less time than in the trial, by more than the factor kChanged. Both the older
// half and the newer half of the latest calls must show the change.
bool Trial::HasChanged() const {
  if (latest_.size() < kCalls) return false;
  const std::deque<double>& tried = outcome_ == Outcome::kKept ? planned().transfers : usual().transfers;
  const double then = TrimmedMean({tried.begin(), tried.end()});
  const auto middle = latest_.begin() + static_cast<std::ptrdiff_t>(kCalls / 2);
  const double one = TrimmedMean({latest_.begin(), middle}), other = TrimmedMean({middle, latest_.end()});
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
  const Comparison transfer = CompareTimes(planned().transfers, usual().transfers);
  out << ",\"trial\":{\"outcome\":\"" << kNames[static_cast<size_t>(outcome_)]
      << "\",\"decided_here\":" << (decides_ ? "true" : "false") << ",\"trials\":" << trials_ << ",\"calls\":["
      << planned().transfers.size() << "," << usual().transfers.size() << "],\"plan_s\":" << transfer.first
      << ",\"default_s\":" << transfer.second << ",\"error_s\":" << transfer.error;
  if (planned().cycles.size() >= 2 && usual().cycles.size() >= 2) {
    const Comparison cycle = CompareTimes(planned().cycles, usual().cycles);
    out << ",\"plan_cycle_s\":" << cycle.first << ",\"default_cycle_s\":" << cycle.second;
  }
  out << "}";
}

}  // namespace jaxcomm

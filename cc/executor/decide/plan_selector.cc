#include "cc/executor/decide/plan_selector.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace jaxcomm {

const PlannedLists::Range* PlannedLists::Find(size_t group_ranks, int64_t bytes) const {
  if (group_ranks != ranks) return nullptr;
  const auto above =
      std::find_if(from.begin(), from.end(), [bytes](const Range& range) { return range.min_bytes > bytes; });
  if (above == from.begin()) return nullptr;
  const Range& found = *std::prev(above);
  return found.lists.empty() ? nullptr : &found;
}

bool PlanSelector::Prepare(const std::shared_ptr<const PlannedLists>& plan, const std::vector<Launch>& from) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!prepared_.empty()) return false;
  for (const Launch& it : from) {
    if (communicators_[it.communicator].next > it.launch) return false;
  }
  for (const Launch& it : from) prepared_[it.communicator] = it.launch;
  plan_ = plan;
  return true;
}

void PlanSelector::Decide(bool commit) { End(commit, Status()); }

void PlanSelector::Fail(const Status& why) { End(/*commit=*/false, why); }

void PlanSelector::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  communicators_.clear();
  prepared_.clear();
  plan_.reset();
  failure_ = Status();
}

void PlanSelector::End(bool commit, const Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [communicator, launch] : prepared_) {
      Launches& it = communicators_[communicator];
      if (commit) {
        it.plans.erase(it.plans.lower_bound(launch), it.plans.end());
        it.plans[launch] = plan_;
        it.begun.clear();
      }
      const auto reached = [&] { return std::distance(it.plans.begin(), it.plans.upper_bound(it.next)); };
      while (reached() > static_cast<std::ptrdiff_t>(kKept)) it.plans.erase(it.plans.begin());
    }
    if (why.ok()) prepared_.clear();
    plan_.reset();
    failure_ = why;
  }
  decided_();
}

std::optional<PlanSelector::Plan> PlanSelector::Select(uint64_t communicator, uint32_t launch, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  Launches& it = communicators_[communicator];
  if (launch >= it.next) {
    const auto change = it.plans.lower_bound(it.next);
    if (change != it.plans.end() && change->first <= launch) it.begun.clear();
    std::deque<Clock::time_point>& begun = it.begun[step];
    begun.push_back(Clock::now());
    if (begun.size() > kPeriods + 1) begun.pop_front();
    it.next = launch + 1;
  }
  const auto prepared = prepared_.find(communicator);
  if (prepared != prepared_.end() && launch >= prepared->second) {
    if (failure_.ok()) return std::nullopt;
    return failure_;
  }
  const auto after = it.plans.upper_bound(launch);
  return after != it.plans.begin() ? Plan(std::prev(after)->second) : Plan(nullptr);
}

std::vector<PlanSelector::Launch> PlanSelector::Next() const {
  std::vector<Launch> launches;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [communicator, it] : communicators_) {
    if (it.next > 0) launches.push_back({communicator, it.next});
  }
  return launches;
}

std::map<uint64_t, std::vector<double>> PlanSelector::Periods() const {
  std::map<uint64_t, std::vector<double>> periods;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [communicator, it] : communicators_) {
    for (const auto& [step, begun] : it.begun) {
      std::vector<double> seconds;
      for (size_t i = 1; i < begun.size(); ++i) seconds.push_back(Seconds(begun[i] - begun[i - 1]));
      // If a step has several communicators, returns the periods of only the first communicator.
      if (!seconds.empty()) periods.emplace(step, std::move(seconds));
    }
  }
  return periods;
}

}  // namespace jaxcomm

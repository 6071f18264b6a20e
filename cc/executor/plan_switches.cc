#include "cc/executor/plan_switches.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace jaxcomm {

const PlannedLists::Range* PlannedLists::Find(uint32_t group_ranks, int64_t bytes) const {
  if (group_ranks != ranks) return nullptr;
  const auto above =
      std::find_if(from.begin(), from.end(), [bytes](const Range& range) { return range.min_bytes > bytes; });
  if (above == from.begin()) return nullptr;
  const Range& found = *std::prev(above);
  return found.lists.empty() ? nullptr : &found;
}

bool PlanSwitches::Prepare(const std::shared_ptr<const PlannedLists>& plan, const std::vector<Launch>& from) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!prepared_.empty()) return false;
  for (const Launch& it : from) {
    if (communicators_[it.communicator].next > it.launch) return false;
  }
  for (const Launch& it : from) prepared_[it.communicator] = it.launch;
  plan_ = plan;
  return true;
}

void PlanSwitches::Decide(bool commit) { End(commit, Status()); }

void PlanSwitches::Fail(const Status& why) { End(/*commit=*/false, why); }

void PlanSwitches::Reset() {
  std::vector<Waiting> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_.clear();
    prepared_.clear();
    plan_.reset();
    failure_ = Status();
    waiting.swap(waiting_);
  }
  for (const Waiting& it : waiting) {
    it.then(Status(Code::kInternal, "this process has left the job"), nullptr, /*has_waited=*/true);
  }
}

void PlanSwitches::End(bool commit, const Status& why) {
  std::vector<Waiting> waiting;
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
    waiting.swap(waiting_);
  }
  for (Waiting& it : waiting) Run(it.communicator, it.launch, std::move(it.then), /*has_waited=*/true);
}

void PlanSwitches::Follow(uint64_t communicator, uint32_t launch, uint64_t step, Then then) {
  {
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
  }
  Run(communicator, launch, std::move(then), /*has_waited=*/false);
}

void PlanSwitches::Run(uint64_t communicator, uint32_t launch, Then then, bool has_waited) {
  std::shared_ptr<const PlannedLists> plan;
  Status failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Launches& it = communicators_[communicator];
    const auto prepared = prepared_.find(communicator);
    if (prepared != prepared_.end() && launch >= prepared->second) {
      if (failure_.ok()) return waiting_.push_back({communicator, launch, std::move(then)});
      failure = failure_;
    }
    const auto after = it.plans.upper_bound(launch);
    if (after != it.plans.begin()) plan = std::prev(after)->second;
  }
  then(failure, plan, has_waited);
}

std::vector<PlanSwitches::Launch> PlanSwitches::Next() const {
  std::vector<Launch> launches;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [communicator, it] : communicators_) {
    if (it.next > 0) launches.push_back({communicator, it.next});
  }
  return launches;
}

std::map<uint64_t, std::vector<double>> PlanSwitches::Periods() const {
  std::map<uint64_t, std::vector<double>> periods;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [communicator, it] : communicators_) {
    for (const auto& [step, begun] : it.begun) {
      std::vector<double> seconds;
      for (size_t i = 1; i < begun.size(); ++i) seconds.push_back(Seconds(begun[i] - begun[i - 1]));
      if (!seconds.empty()) periods.emplace(step, std::move(seconds));  // of several communicators one will do
    }
  }
  return periods;
}

}  // namespace jaxcomm

#include "cc/executor/local/local_executor.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace jaxcomm {
namespace {

// If a call reads and stores no more bytes than this, handing its work to another thread takes longer than the work.
constexpr int64_t kTinyWork = 1 << 20;

std::string NameOf(const LocalSite& site) { return site.name() + " over '" + site.axes() + "'"; }

}  // namespace

void LocalExecutor::Arrive(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t rank, Buffers buffers,
                           Done done) {
  if (!threads_.Start()) return done(CallThreads::NoThread(NameOf(*site)));
  const Clock::time_point now = Clock::now();
  const std::shared_ptr<LocalCall> call = Join(key, site, /*ranks=*/1);
  Progress progress = call->Arrive(rank, std::move(buffers), std::move(done), now);
  if (call->site().work() <= kTinyWork) RunHere(call, progress);
  const auto mine = std::find_if(progress.completions.begin(), progress.completions.end(),
                                 [rank](const Completion& completion) { return completion.rank == rank; });
  std::vector<Completion> own;
  if (mine != progress.completions.end()) {
    own.push_back(std::move(*mine));
    progress.completions.erase(mine);
  }
  Advance(call, std::move(progress));
  // If all ranks have arrived, they all wait for this call. This thread then runs jobs itself until the workers have
  // woken up.
  if (call->everyone_arrived()) threads_.workers().Help();
  for (const Completion& completion : own) completion.done(completion.status);
}

// Makes `ranks` ranks join the call of this key. When all ranks have joined a call, the next Join with the same key,
// for instance in a loop, begins a new call.
std::shared_ptr<LocalCall> LocalExecutor::Join(const Key& key, const std::shared_ptr<LocalSite>& site, uint32_t ranks) {
  const CallKey call_key{key.run, site.get(), key.group};
  std::lock_guard<std::mutex> lock(mutex_);
  threads_.WatchDeadlines();  // called before the rank joins, because WatchDeadlines may throw
  const auto make = [&](int64_t number) { return std::make_shared<LocalCall>(site, key.names, number, Clock::now()); };
  const std::shared_ptr<LocalCall> call = calls_.Join(call_key, make).call;
  if (call->Join(ranks)) calls_.Erase(call_key);
  return call;
}

void LocalExecutor::Abort(const Key& key, const std::shared_ptr<LocalSite>& site, Status why, uint32_t coming) {
  const std::shared_ptr<LocalCall> call = Join(key, site, site->program().ranks() - coming);
  Advance(call, call->Fail(std::move(why)));
}

void LocalExecutor::RunHere(const std::shared_ptr<LocalCall>& call, Progress& progress) {
  while (!progress.slices.empty()) {
    std::vector<OpSlice> slices = std::move(progress.slices);
    progress.slices.clear();
    for (const OpSlice& slice : slices) {
      Progress more = call->Run(slice);
      std::move(more.slices.begin(), more.slices.end(), std::back_inserter(progress.slices));
      std::move(more.completions.begin(), more.completions.end(), std::back_inserter(progress.completions));
    }
  }
}

void LocalExecutor::Advance(const std::shared_ptr<LocalCall>& call, Progress progress) {
  std::vector<std::function<void()>> jobs;
  jobs.reserve(progress.slices.size());
  for (const OpSlice& slice : progress.slices) {
    jobs.push_back([this, call, slice] { Advance(call, call->Run(slice)); });
  }
  if (!jobs.empty()) threads_.workers().Submit(std::move(jobs));
  if (progress.is_undecided) {
    threads_.timer().After(call->site().selector()->grace(), [this, weak = std::weak_ptr<LocalCall>(call)] {
      if (const auto still = weak.lock()) Advance(still, still->SelectMissing());
    });
  }
  for (Completion& completion : progress.completions) {
    threads_.CallBack(NameOf(call->site()), std::move(completion));
  }
}

bool LocalExecutor::FailOverdue(Clock::time_point now, double deadline) {
  bool waits = false;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto calls = calls_.All();
  lock.unlock();
  for (const auto& [key, call] : calls) {
    if (call->failed()) continue;
    if (Seconds(now - call->start()) < deadline) {
      waits = true;
      continue;
    }
    Progress end = call->Expire(now);
    lock.lock();
    calls_.KeepFailed(key);
    lock.unlock();
    Advance(call, std::move(end));
  }
  return waits;
}

void LocalExecutor::Forget(const LocalSite* site) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.EraseIf([site](const CallKey& key, const LocalCall&) { return std::get<1>(key) == site; });
}

size_t LocalExecutor::open_calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_.size();
}

}  // namespace jaxcomm

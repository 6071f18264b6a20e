#include "cc/executor/executor.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace jaxcomm {
namespace {

// Below this many bytes read and stored, handing work to another thread takes longer than doing it.
constexpr int64_t kTinyWork = 1 << 20;

// How many overdue calls are kept for ranks that come late. One that comes later still waits until the deadline.
constexpr size_t kFailedKept = 256;

// How long a callback that lacks a thread waits before it asks for one again.
constexpr std::chrono::milliseconds kRetry{10};

std::string NameOf(const Site& site) { return site.name() + " over '" + site.axes() + "'"; }

Status NoThread(const std::string& who) {
  return Status(Code::kInternal, who +
                                     ": the system lets this process start no thread.\n  Cure: raise the limit on "
                                     "threads (`ulimit -u`, a container's pids limit) or on memory (`ulimit -v`).");
}

}  // namespace

Executor::Executor(unsigned num_threads)
    : num_threads_(num_threads), across_(pool_, timer_, [this](const std::string& who, Completion completion) {
        if (completion.is_quick) return completion.done(completion.status);
        CallBack(who, std::move(completion.done), std::move(completion.status), Clock::now());
      }) {}

void Executor::Arrive(Key key, const std::shared_ptr<Site>& site, uint32_t rank, Buffers buffers, Done done) {
  if (!Start()) return done(NoThread(NameOf(*site)));
  const Clock::time_point now = Clock::now();
  const std::shared_ptr<Call> call = Join(key, site);
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
  // The others wait for this rank: its thread works until a thread of the pool has woken.
  if (call->everyone_arrived()) pool_.Help();
  for (const Completion& completion : own) completion.done(completion.status);
}

void Executor::ArriveAcross(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers,
                            Done done, const Status& refused) {
  if (!Start()) {
    const Status why = NoThread(site->label().name + " over '" + site->label().axes + "'");
    across_.Refuse(*site, run, rank, why);
    return done(why);
  }
  across_.Arrive(site, run, rank, std::move(buffers), std::move(done), refused);
  WatchAcross();
}

void Executor::ArriveAcross(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                            Buffers buffers, Done done, const Status& refused, bool helps) {
  if (!Start()) {
    const Status why = NoThread(site->label().name + " over '" + site->label().axes + "'");
    across_.Refuse(*site, id, why);
    return done(why);
  }
  across_.Arrive(site, id, rank, std::move(buffers), std::move(done), refused, helps);
  WatchAcross();
}

void Executor::WatchAcross() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!watching_ && across_.waiting()) ArmWatch();
}

bool Executor::Start() {
  std::lock_guard<std::mutex> lock(mutex_);
  started_ = started_ || (timer_.Start() && pool_.Start(num_threads_));
  return started_;
}

Executor::CallsInFlight::iterator Executor::Find(const Key& key, const std::shared_ptr<Site>& site) {
  const auto at = in_flight_.try_emplace({key.run, site.get(), key.group}).first;
  std::shared_ptr<Call>& call = at->second.call;
  if (!call) {
    call = std::make_shared<Call>(Site::Next(site), key.names, ++number_, Clock::now());
    at->second.coming = site->program().ranks();
    if (!watching_) ArmWatch();
  }
  return at;
}

std::shared_ptr<Call> Executor::Join(const Key& key, const std::shared_ptr<Site>& site) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto at = Find(key, site);
  const std::shared_ptr<Call> call = at->second.call;
  // When all have joined, the next call with the same key, in a loop, is another one.
  if (--at->second.coming == 0) in_flight_.erase(at);
  return call;
}

void Executor::Abort(const Key& key, const std::shared_ptr<Site>& site, Status why, uint32_t coming) {
  std::shared_ptr<Call> call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = Find(key, site);
    call = at->second.call;
    at->second.coming -= site->program().ranks() - coming;
    if (at->second.coming == 0) in_flight_.erase(at);
  }
  Advance(call, call->Fail(std::move(why)));
}

void Executor::RunHere(const std::shared_ptr<Call>& call, Progress& progress) {
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

void Executor::Advance(const std::shared_ptr<Call>& call, Progress progress) {
  std::vector<std::function<void()>> jobs;
  jobs.reserve(progress.slices.size());
  for (const OpSlice& slice : progress.slices) {
    jobs.push_back([this, call, slice] { Advance(call, call->Run(slice)); });
  }
  if (!jobs.empty()) pool_.Submit(std::move(jobs));
  for (Completion& completion : progress.completions) {
    CallBack(NameOf(call->site()), std::move(completion.done), std::move(completion.status), Clock::now());
  }
}

void Executor::CallBack(const std::string& who, Done done, Status status, Clock::time_point since) {
  if (threads_.Run([done, status] { done(status); })) return;
  if (std::chrono::duration<double>(Clock::now() - since).count() >= deadline_.load()) {
    done(status.ok() ? NoThread(who) : status);  // on the timer's thread, which a program's end does not hold up
  } else {
    timer_.After(kRetry, [=] { CallBack(who, done, status, since); });
  }
}

void Executor::Delay(Clock::duration delay, Done done) {
  if (!Start()) return done(NoThread("delay"));
  timer_.After(delay, [this, done = std::move(done)] { CallBack("delay", done, Status(), Clock::now()); });
}

void Executor::ArmWatch() {
  watching_ = true;
  const double period = std::clamp(deadline_.load() / 20, 0.01, 0.25);
  timer_.After(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(period)), [this] { Watch(); });
}

// Looks at every call that somebody has yet to join, and ends those that are overdue. A failed call stays, so that a
// rank that comes late gets the same error, until its call site goes, nobody can come any more or many more have
// failed.
void Executor::Watch() {
  const Clock::time_point now = Clock::now();
  const double deadline = deadline_.load();
  across_.Watch(now, deadline);
  std::vector<std::shared_ptr<Call>> overdue;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    bool waiting = false;
    for (const auto& [key, entry] : in_flight_) {
      const std::shared_ptr<Call>& call = entry.call;
      if (call->failed()) continue;
      if (std::chrono::duration<double>(now - call->start()).count() >= deadline) {
        overdue.push_back(call);
        failed_.push_back(key);
      } else {
        waiting = true;
      }
    }
    watching_ = false;
    if (waiting || across_.waiting()) ArmWatch();
  }
  std::vector<Progress> ends;
  for (const auto& call : overdue) ends.push_back(call->Expire(now));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; failed_.size() > kFailedKept; failed_.pop_front()) {
      const auto oldest = in_flight_.find(failed_.front());
      if (oldest != in_flight_.end() && oldest->second.call->failed()) in_flight_.erase(oldest);
    }
  }
  for (size_t i = 0; i < overdue.size(); ++i) Advance(overdue[i], std::move(ends[i]));
}

size_t Executor::open_calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_.size();
}

void Executor::Forget(const Site* site) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = in_flight_.begin(); at != in_flight_.end();) {
    at = std::get<1>(at->first) == site ? in_flight_.erase(at) : std::next(at);
  }
}

}  // namespace jaxcomm

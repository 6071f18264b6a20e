#include "cc/executor/across.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "cc/executor/deadline_status.h"

namespace jaxcomm {
namespace {

// How long a rank that arrives takes messages itself: longer than the others need if they have arrived, or soon will.
constexpr std::chrono::milliseconds kHelp{1};

// How long nothing comes where views that wait for other messages hold up their sender, until they are copied: to copy
// all of them takes longer, but what they wait for may be behind them at the same sender.
constexpr std::chrono::milliseconds kPatience{5};

constexpr size_t kFailedKept = 256;  // calls

}  // namespace

// What the running thread has yet to start, of any call. What a callback makes possible is started by whoever called
// the transport on this thread, so that the stack does not grow with the messages.
struct AcrossProcesses::Driver {
  static thread_local Driver* current;

  std::deque<Work> work;
  // The completion of the rank that is arriving on this thread needs no other one.
  const MessageCall* call = nullptr;
  uint32_t rank = 0;
  std::optional<Completion> own;
  bool helps = false;  // its thread waits for what comes of it, and lets the transport flush

  // While it lives, the running thread's driver.
  class Current {
   public:
    explicit Current(Driver& driver) : outer_(std::exchange(current, &driver)) {}
    ~Current() { current = outer_; }
    Current(const Current&) = delete;

   private:
    Driver* const outer_;
  };
};
thread_local AcrossProcesses::Driver* AcrossProcesses::Driver::current = nullptr;

// For names_; the mutex is held when it is asked.
auto AcrossProcesses::GivenUp(const MessageSite& site) const {
  return [this, &site](uint32_t launch) {
    return failures_.IsMissed({site.communicator(), launch, 0, 0}, site.step());
  };
}

void AcrossProcesses::Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused) {
  const User user(users_);
  if (!IsConnected(*site, done)) return;
  const Clock::time_point now = Clock::now();
  std::shared_ptr<const MessageSite> chosen;
  StepChoice::Said said;
  CallId id;
  Status failed = refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = names_.Next(site->communicator(), run, site->site(), rank, GivenUp(*site));
    for (const CallId& launch : names_.Find(run)) {
      if (failed.ok() && launch.communicator != id.communicator) failed = failures_.Find(launch);
    }
    chosen = Chosen(site, id, rank, said);
    if (!chosen) undecided_.push_back({site, id, rank, std::move(buffers), std::move(done), now});
  }
  if (!chosen) {
    transport_.load()->Expect();
    SendNotice(site->everybody(),
               Encode(Arrival{id, rank, site->ranks()[rank].device, site->fingerprint(), site->text(), {}, true}));
    transport_.load()->Flush();
    return StartDecided(/*overdue=*/Clock::time_point::min());  // it may have failed, or been decided meanwhile
  }
  Begin(chosen, id, rank, std::move(buffers), std::move(done), said, failed, now);
  if (site->other()) StartDecided(/*overdue=*/Clock::time_point::min());
}

void AcrossProcesses::Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused, bool helps) {
  const User user(users_);
  if (!IsConnected(*site, done)) return;
  const Clock::time_point now = Clock::now();
  Driver driver;
  driver.helps = helps;
  const Driver::Current current(driver);
  bool is_new = false;
  if (const auto call = JoinOrRefuse(site, id, rank, now, refused, is_new, done)) {
    if (is_new && helps) ++unexpected_;
    if (is_new && !helps) transport_.load()->Expect();
    driver.work.push_back({call, call->Arrive(rank, std::move(buffers), std::move(done), now, {})});
  }
  Run(driver);
}

bool AcrossProcesses::Help(const std::function<bool()>& over) {
  const User user(users_);
  if (!is_connected()) return false;
  Driver driver;
  driver.helps = true;
  bool helped = false;
  {
    const Driver::Current current(driver);
    transport_.load()->Help(kHelp, yields_, [&] {
      helped = true;
      Run(driver);
      return over();
    });
  }
  for (int64_t calls = unexpected_.exchange(0); calls > 0; --calls) transport_.load()->Expect();
  return helped;
}

// Otherwise the rank gets an error.
bool AcrossProcesses::IsConnected(const MessageSite& site, const Done& done) const {
  if (is_connected()) return true;
  done(Status(Code::kInternal, site.text() + ": the processes of the job are not connected.\n  Cure: call " +
                                   "jaxcomm.init() after jax.distributed.initialize()."));
  return false;
}

void AcrossProcesses::Begin(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                            Buffers buffers, Done done, StepChoice::Said said, const Status& refused,
                            Clock::time_point now) {
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = JoinOrRefuse(site, id, rank, now, refused, is_new, done);
  if (!call) return;
  Driver driver;
  driver.call = call.get();
  driver.rank = rank;
  driver.work.push_back({call, call->Arrive(rank, std::move(buffers), std::move(done), now, said)});
  if (MayHelp(*call)) {
    Help(driver);
  } else {
    Run(driver);
  }
  if (is_new) transport_.load()->Expect();
  if (driver.own) driver.own->done(driver.own->status);
}

void AcrossProcesses::Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) {
  const User user(users_);
  if (!is_connected()) return;
  CallId id;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = names_.Next(site.communicator(), run, site.site(), rank, GivenUp(site));
  }
  Refuse(site, id, why);
}

void AcrossProcesses::Refuse(const MessageSite& site, const CallId& id, const Status& why) {
  const User user(users_);
  if (!is_connected()) return;
  std::shared_ptr<MessageCall> call;  // that other ranks of this process have come to
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.Add(id, why, site.step());
    if (const auto at = calls_.find(id); at != calls_.end()) call = at->second;
  }
  TellFailure(site, id, why);
  if (call) Drive(call, call->Fail(why, /*announce=*/false));
}

// The site whose lists the call runs, and what the rank says of that if it decides; none: nobody has said it yet. The
// mutex is held.
std::shared_ptr<const MessageSite> AcrossProcesses::Chosen(const std::shared_ptr<const MessageSite>& site,
                                                           const CallId& id, uint32_t rank, StepChoice::Said& said) {
  if (!site->other()) return site;
  StepChoice& choice = *site->choice();
  if (rank == choice.decider()) {
    said = choice.Decide(id);
    return said.here ? site->other() : site;
  }
  for (const PeerArrival& peer : early_.Find(id)) {
    const bool decides = peer.arrival.rank == choice.decider();
    if (decides && peer.process == site->ranks()[choice.decider()].process) choice.Heard(id, peer.arrival.said);
  }
  const std::optional<bool> is_other = choice.Find(id);
  return !is_other ? nullptr : *is_other ? site->other() : site;
}

// Whether a process has ended that has not come to the call.
bool AcrossProcesses::LacksSomebody(const Undecided& rank) const {
  const std::vector<PeerArrival> early = early_.Find(rank.id);
  return std::any_of(rank.site->others().begin(), rank.site->others().end(), [&](uint32_t process) {
    const auto is_its = [process](const PeerArrival& peer) { return peer.process == process && !peer.arrival.waits; };
    return gone_.count(process) > 0 && std::none_of(early.begin(), early.end(), is_its);
  });
}

// Starts the calls of which is known by now what they run, and those that fail: for lack of somebody, or of time.
void AcrossProcesses::StartDecided(Clock::time_point overdue) {
  std::vector<Undecided> ready;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < undecided_.size();) {
      Undecided& rank = undecided_[i];
      StepChoice::Said said;  // by whom nothing is decided
      std::shared_ptr<const MessageSite> chosen = Chosen(rank.site, rank.id, rank.rank, said);
      const bool fails = rank.at <= overdue || LacksSomebody(rank) || !failures_.Find(rank.id).ok();
      if (!chosen && !fails) {
        ++i;
        continue;
      }
      if (chosen) rank.site = std::move(chosen);
      ready.push_back(std::move(rank));
      undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    starting_ += ready.size();
  }
  for (Undecided& rank : ready) {
    bool is_new = false;
    const std::shared_ptr<MessageCall> call =
        JoinOrRefuse(rank.site, rank.id, rank.rank, rank.at, Status(), is_new, rank.done);
    if (call) Drive(call, call->Arrive(rank.rank, std::move(rank.buffers), std::move(rank.done), Clock::now(), {}));
    if (is_new) transport_.load()->Expect();
    transport_.load()->EndExpecting();
  }
  if (ready.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  starting_ -= ready.size();
}

// Of a small call the last rank of this process that arrives takes the messages itself.
bool AcrossProcesses::MayHelp(const MessageCall& call) const {
  if (!call.site().is_small() || !call.AllHereHaveArrived()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return open_ == 1;
}

// For a short time: it keeps a thread of XLA's, which other calls may need.
void AcrossProcesses::Help(Driver& driver) {
  const Driver::Current current(driver);
  driver.helps = true;
  Run(driver);
  transport_.load()->Help(kHelp, yields_, [&] {
    Run(driver);
    return driver.own.has_value();
  });
}

std::shared_ptr<StepChoice> AcrossProcesses::ChoiceOf(const MessageSite& site, const MessageSite& other,
                                                      StepChoice::Rule rule) {
  std::string calls = std::to_string(site.site()) + "|" + site.label().plan + "|" + site.lists() + "|" + other.lists() +
                      "|" + std::to_string(rule.rank) + "|" + std::to_string(rule.below);
  for (const MessageSite::Rank& rank : site.ranks()) calls += "|" + std::to_string(rank.device);
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<StepChoice>& choice = choices_[{site.communicator(), calls}];
  if (!choice) choice = std::make_shared<StepChoice>(rule);
  return choice;
}

uint32_t AcrossProcesses::LaunchOf(const MessageSite& site, int64_t run) {
  const User user(users_);
  if (!is_connected()) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  return names_.LaunchOf(site.communicator(), run, GivenUp(site));
}

void AcrossProcesses::Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps) {
  if (Driver::current != nullptr) {
    Driver::current->work.push_back({call, std::move(steps)});
    return;
  }
  Driver driver;
  driver.work.push_back({call, std::move(steps)});
  Run(driver);
}

void AcrossProcesses::Run(Driver& driver) {
  const Driver::Current current(driver);
  bool queued = false;
  for (;;) {
    for (; !driver.work.empty(); driver.work.pop_front()) {
      Work& work = driver.work.front();
      queued = StartTasks(work.call, work.steps) || queued;
      Finish(work.call, work.steps, driver);
    }
    if (!queued || driver.helps) break;
    queued = false;
    transport_.load()->Flush();
  }
}

// Receives first, so that the other side finds them posted when it hears of the arrival. Whether there is something to
// flush.
bool AcrossProcesses::StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps) {
  const auto each = [&](MessageTask::Kind kind, const auto& start) {
    size_t count = 0;
    for (const MessageStep& step : steps.tasks) {
      if (call->task(step).kind != kind) continue;
      start(step);
      ++count;
    }
    return count;
  };
  size_t started = each(MessageTask::Kind::kReceive, [&](const MessageStep& step) { Post(call, step); });
  if (steps.arrived) {
    const MessageSite& site = call->site();
    const uint32_t rank = *steps.arrived;
    SendNotice(
        site.locals()[*site.FindLocal(rank)].others,
        Encode(Arrival{call->id(), rank, site.ranks()[rank].device, site.fingerprint(), site.text(), steps.said}));
  }
  started += each(MessageTask::Kind::kSend, [&](const MessageStep& step) { Send(call, step); });
  if (started > 0) Drive(call, call->Started(started));

  std::vector<std::function<void()>> jobs;
  each(MessageTask::Kind::kAdd, [&](const MessageStep& step) {
    if (call->site().is_small() || Driver::current->helps) {
      Drive(call, call->Add(step));
    } else {
      jobs.push_back([this, call, step, user = User(users_)] { Drive(call, call->Add(step)); });
    }
  });
  if (!jobs.empty()) pool_.Submit(std::move(jobs));
  if (steps.keeps_too_much)
    timer_.After(kPatience,
                 [this, call, user = User(users_)] { Drive(call, call->CopyViews(Clock::now() - kPatience)); });
  return started > 0 || steps.arrived;
}

// The transport may go as soon as the last rank has heard of its end, so that comes last.
void AcrossProcesses::Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Driver& driver) {
  if (steps.over && Close(call)) transport_.load()->EndExpecting();
  if (steps.failed) TellFailure(call->site(), call->id(), call->failure());
  if (steps.ended) {
    transport_.load()->EndExpecting();
    Stop(call);
  }
  for (Completion& completion : steps.completions) {
    if (driver.call == call.get() && driver.rank == completion.rank) {
      driver.own = std::move(completion);
    } else if (completion.is_quick) {
      completion.done(completion.status);
    } else {
      call_back_(call->Describe(), std::move(completion));
    }
  }
}

// Whether it was open until now.
bool AcrossProcesses::Close(const std::shared_ptr<MessageCall>& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_.erase(call->id()) == 0) return false;
  --open_;
  if (!call->site().is_divided()) return true;
  finished_.Add(call->id(), {call->shared_site(), call->first(), call->Describe()});
  return true;
}

void AcrossProcesses::Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  const uint32_t from = call->site().ranks()[call->RankOf(step.local, task.peers[0].rank)].process;
  if (task.is_lossy) {
    const MessageMemory& memory = call->memory(step.local);
    return PostLossy(*transport_.load(), from, call->Id(step, task.peers[0]), memory.Spans(task), memory.MayLose(task),
                     [this, call, step, from](const Status& status, std::shared_ptr<const std::byte> view,
                                              const std::vector<ByteRange>& lost) {
                       const bool may_keep = view && transport_.load()->MayKeep(from);
                       Drive(call, call->Received(step, status, std::move(view), may_keep, lost));
                     });
  }
  transport_.load()->Post(from, call->Id(step, task.peers[0]), call->memory(step.local).Spans(task),
                          call->memory(step.local).AcceptsView(task),
                          [this, call, step, from](const Status& status, std::shared_ptr<const std::byte> view) {
                            const bool may_keep = view && transport_.load()->MayKeep(from);
                            Drive(call, call->Received(step, status, std::move(view), may_keep));
                          });
}

void AcrossProcesses::Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step) {
  const MessageTask& task = call->task(step);
  std::vector<Receiver> to;
  to.reserve(step.peers.size());
  for (const uint32_t index : step.peers) {
    const MessageTask::Peer& peer = task.peers[index];
    to.push_back({call->site().ranks()[call->RankOf(step.local, peer.rank)].process, call->Id(step, peer)});
  }
  const MessageMemory& memory = call->memory(step.local);
  const Sent done = [this, call, step](const Status& status) {
    Drive(call, call->Sent(status.ok() ? step : OfGone(*call, step), status));
  };
  if (!task.is_lossy) return transport_.load()->Send(to, memory.ConstSpans(task), done);
  SendLossy(*transport_.load(), to[0], memory.ConstSpans(task), memory.Important(task), memory.MayLose(task), done);
}

// The step for that of its receivers alone whose process is gone; for all where none is known to be.
MessageStep AcrossProcesses::OfGone(const MessageCall& call, const MessageStep& step) const {
  const MessageTask& task = call.task(step);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t index : step.peers) {
    const uint32_t rank = call.RankOf(step.local, task.peers[index].rank);
    if (gone_.count(call.site().ranks()[rank].process) > 0) return {step.local, step.task, {index}};
  }
  return step;
}

// Nothing is being started or added any more; what the transport still does for the call must end before its ranks hear
// of it. Cancel may wait for a copy, so it is not for the thread that copies.
void AcrossProcesses::Stop(const std::shared_ptr<MessageCall>& call) {
  const Status why = call->failure();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    --open_;
    failures_.Add(call->id(), why, call->site().step());
    failed_.push_back(call->id());
    for (; failed_.size() > kFailedKept; failed_.pop_front()) calls_.erase(failed_.front());
  }
  pool_.Submit({[this, call, user = User(users_)] {
    transport_.load()->Cancel(call->id());
    for (Completion& completion : call->TakeWaiting()) call_back_(call->Describe(), std::move(completion));
  }});
}

bool AcrossProcesses::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!undecided_.empty() || starting_ > 0) return true;
  return std::any_of(calls_.begin(), calls_.end(), [](const auto& entry) { return !entry.second->failed(); });
}

void AcrossProcesses::Watch(Clock::time_point now, double deadline) {
  const User user(users_);
  StartDecided(now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline)));
  std::vector<std::shared_ptr<MessageCall>> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : calls_) calls.push_back(entry.second);
  }
  for (const auto& call : calls) {
    const std::optional<MessageCall::Delay> delay = call->Overdue(now, deadline);
    if (!delay) continue;
    Status why;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto is_open = [this](const CallId& id) { return calls_.count(id) > 0 || early_.Has(id); };
      why = DeadlineStatus(*call, *delay, now, last_calls_, is_open);
    }
    Drive(call, call->Fail(std::move(why), /*announce=*/true));
  }
}

void AcrossProcesses::Forget(const MessageSite* site) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = calls_.begin(); at != calls_.end();) {
    const bool gone = at->second->site().IsOf(*site) && at->second->failed();
    at = gone ? calls_.erase(at) : std::next(at);
  }
}

void AcrossProcesses::ForgetCommunicator(uint64_t communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  names_.Forget(communicator);
  for (auto at = choices_.begin(); at != choices_.end();) {
    at = at->first.first == communicator ? choices_.erase(at) : std::next(at);
  }
}

}  // namespace jaxcomm

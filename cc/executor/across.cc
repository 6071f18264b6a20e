#include "cc/executor/across.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "cc/executor/across_driver.h"
#include "cc/executor/deadline_status.h"

namespace jaxcomm {

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
  if (!chosen) return AwaitDecision(*site, id, rank);
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
  std::shared_ptr<const MessageSite> chosen = site;
  StepChoice::Said said;
  if (site->other()) {
    std::lock_guard<std::mutex> lock(mutex_);
    chosen = Chosen(site, id, rank, said);
    if (!chosen) undecided_.push_back({site, id, rank, std::move(buffers), std::move(done), now});
  }
  if (!chosen) return AwaitDecision(*site, id, rank);
  bool is_new = false;
  if (const auto call = JoinOrRefuse(chosen, id, rank, now, refused, is_new, done)) {
    if (is_new && helps) ++unexpected_;
    if (is_new && !helps) transport_.load()->Expect();
    driver.work.push_back({call, call->Arrive(rank, std::move(buffers), std::move(done), now, said)});
  }
  Run(driver);
  if (site->other()) StartDecided(/*overdue=*/Clock::time_point::min());
}

// The rank is undecided; reports that it has come.
void AcrossProcesses::AwaitDecision(const MessageSite& site, const CallId& id, uint32_t rank) {
  transport_.load()->Expect();
  SendNotice(site.everybody(),
             Encode(Arrival{id, rank, site.ranks()[rank].device, site.fingerprint(), site.text(), {}, true}));
  transport_.load()->Flush();
  StartDecided(/*overdue=*/Clock::time_point::min());  // it may have failed, or been decided meanwhile
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
    Help(driver, [&] { return driver.own.has_value(); });
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

std::shared_ptr<StepChoice> AcrossProcesses::ChoiceOf(const MessageSite& site, const MessageSite& other,
                                                      StepChoice::Rule rule) {
  std::string calls = std::to_string(site.site()) + "|" + site.label().plan + "|" + site.lists() + "|" + other.lists() +
                      "|" + std::to_string(rule.rank) + "|" + std::to_string(rule.below) + (rule.tries ? "|tries" : "");
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

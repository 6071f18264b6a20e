#include "cc/executor/messages/message_executor.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "cc/base/finally.h"
#include "cc/executor/messages/operand_exchange.h"
#include "cc/executor/messages/result_pages.h"

namespace jaxcomm {
namespace {

using Turn = MessageDriver::Turn;

// On XLA's threads, ranks read each other's operands in place only if all ranks' operands together have at most this
// size.
constexpr int64_t kMostRead = int64_t{4} << 20;

// The time for which a thread of XLA waits in an exchange for other ranks. A longer wait would keep it from computing.
// The call then continues with messages. A thread that runs nothing else waits for kLongestWait: a call with messages
// is slower, and large calls follow computations that end at unlike times.
constexpr std::chrono::milliseconds kShortWait{1}, kNoWait{0};

// The interval at which Disconnect polls whether the last call has ended.
constexpr std::chrono::milliseconds kPoll{1};

Status Malformed(uint32_t process, size_t bytes) {
  return Status(Code::kInternal, "process " + std::to_string(process) + " has been cut off: it sent a notice of " +
                                     std::to_string(bytes) + " bytes that cannot be read.\n" +
                                     "  Cure: run the same jaxcomm in all processes.");
}

// Whether an earlier notice says that a rank of the process has joined the call.
bool HasCome(const CallMatcher::Joined& joined, uint32_t process) {
  return std::any_of(joined.early.begin(), joined.early.end(),
                     [process](const PeerArrival& peer) { return peer.process == process && !peer.arrival.waits; });
}

}  // namespace

void MessageExecutor::Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused) {
  const User user(driver_.users());
  if (Status status = Check(*site); !status.ok()) {
    Refuse(*site, run, rank, status);
    return done(status);
  }
  const Clock::time_point now = Clock::now();
  const auto [id, failure] = calls_.Name(*site, run, rank);
  ArrivingRank arriving{site, id, rank, std::move(buffers), std::move(done), now, refused.ok() ? failure : refused};
  KeepDecided(site);
  if (!Select(arriving)) return Wait(std::move(arriving));
  // Larger operands are not read in place, because reading them would occupy this thread, which is XLA's, for too long.
  const MessageSite::Exchanging& how = arriving.site->exchanging();
  const auto ranks = static_cast<int64_t>(how.processes.size());
  const bool is_short = !how.in_place || ranks * arriving.site->layout().payload() <= kMostRead;
  if (is_short && TryExchange(arriving, calls_.open() == 0 ? kShortWait : kNoWait)) return arriving.done(Status());
  Begin(std::move(arriving));
  if (site->selector()) StartDecided(id);
}

bool MessageExecutor::Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused, bool helps, Clock::time_point at) {
  const User user(driver_.users());
  if (Status status = Check(*site); !status.ok()) {
    Refuse(*site, id, status);
    done(status);
    return true;
  }
  ArrivingRank arriving{site, id, rank, std::move(buffers), std::move(done), at, refused};
  KeepDecided(site);
  if (!Select(arriving)) {
    Wait(std::move(arriving));
    return true;
  }
  const auto wait = helps ? OperandExchange::kLongestWait : kNoWait;
  // The callers of the other sites have tried ExchangeOperands or JoinTransfer already.
  if (site->follows_plans() && TryExchange(arriving, wait)) {
    arriving.done(Status());
    return false;
  }
  BeginHelped(std::move(arriving), helps);
  if (site->selector()) StartDecided(id);
  return true;
}

std::unique_ptr<MessageExecutor::JoinedTransfer> MessageExecutor::JoinTransfer(
    const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, const Buffers& buffers,
    const Done& done, Clock::time_point at) {
  const User user(driver_.users());
  if (!site->exchanging().is_transfer || !Check(*site).ok()) return nullptr;
  auto joined = std::make_unique<JoinedTransfer>(ArrivingRank{site, id, rank, buffers, done, at, Status()}, user);
  return joined->transfer.Join(transport(), calls_) ? std::move(joined) : nullptr;
}

bool MessageExecutor::EndTransfer(std::unique_ptr<JoinedTransfer> rank) {
  if (!rank->transfer.Finish(calls_, LimitsOf(OperandExchange::kLongestWait))) {
    BeginHelped(std::move(rank->arriving), /*helps=*/true);
    return true;
  }
  rank->arriving.done(Status());
  try {
    for (const PeerArrival& peer : rank->transfer.Record(calls_)) {
      SendDifference({rank->arriving.site, rank->arriving.rank, 0}, peer.process, peer.arrival);
    }
  } catch (const std::bad_alloc&) {  // the bytes have been transferred, only the record is missing
  }
  return false;
}

bool MessageExecutor::ExchangeOperands(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                                       const Buffers& buffers, Clock::time_point at) {
  if (site->exchanging().processes.empty() || site->follows_plans()) return false;
  const User user(driver_.users());
  const ArrivingRank arriving{site, id, rank, buffers, Done(), at, Status()};
  return Check(*site).ok() && TryExchange(arriving, OperandExchange::kLongestWait);
}

// Returns whether an exchange has completed the rank's call.
bool MessageExecutor::TryExchange(const ArrivingRank& arriving, std::chrono::nanoseconds wait) {
  OperandExchange exchange(arriving);
  return exchange.Join(transport(), calls_) && exchange.Finish(calls_, LimitsOf(wait));
}

// Returns the limits of an exchange that waits for other ranks for at most `arrivals`. The exchange may take half of
// the deadline. If a rank stops while it reads, the call then still has time to continue with messages, and the
// deadline error names the rank.
WaitLimits MessageExecutor::LimitsOf(std::chrono::nanoseconds arrivals) const {
  constexpr double kLongest = 1e6;  // seconds
  const double seconds = std::min(threads_.deadline() / 2, kLongest);
  const auto end = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return {std::min(arrivals, end), end};
}

// Begins the rank's call with messages. With `helps`, the caller must call Help next.
void MessageExecutor::BeginHelped(ArrivingRank arriving, bool helps) {
  Turn turn;
  turn.helps = helps;
  const Turn::Current current(turn);
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
  if (is_new && helps) driver_.ExpectAfterHelp();
  if (is_new && !helps) transport().Expect();
  if (call) {
    turn.work.push_back(
        {call, call->Arrive(arriving.rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at)});
  }
  driver_.Run(turn);
}

bool MessageExecutor::Help(const std::function<bool()>& over) {
  const User user(driver_.users());
  return is_connected() && driver_.Help(over);
}

// Returns an error if the processes are not connected or the threads cannot start.
Status MessageExecutor::Check(const MessageSite& site) const {
  if (!is_connected()) {
    return Status(Code::kInternal, site.text() + ": the processes of the job are not connected.\n  Cure: call " +
                                       "jaxcomm.init() after jax.distributed.initialize().");
  }
  return threads_.Start() ? Status() : CallThreads::NoThread(site.NameCall().Text());
}

void MessageExecutor::Begin(ArrivingRank arriving) {
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
  if (!call) {
    if (is_new) transport().Expect();  // needed because the call has failed, and its failure runs EndExpecting
    return;
  }
  Turn turn;
  turn.call = call.get();
  turn.rank = arriving.rank;
  turn.work.push_back(
      {call, call->Arrive(arriving.rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at)});
  if (driver_.MayHelp(*call)) {
    driver_.Help(turn, [&] { return turn.own.has_value(); });
  } else {
    driver_.Run(turn);
  }
  if (is_new) transport().Expect();
  if (turn.own) turn.own->done(turn.own->status);
}

// Finds or makes the rank's call, and processes the notices that other processes sent earlier. Returns null if the
// graphs of the call's schedule cannot be made; the rank has received the error by then.
std::shared_ptr<MessageCall> MessageExecutor::Join(const ArrivingRank& arriving, bool& is_new) {
  const MessageSite& site = *arriving.site;
  Status made;
  try {
    made = site.MakeGraphs();
  } catch (const std::bad_alloc&) {
    made = NoMemory{site.NameCall(), site.ranks().NameOf(arriving.rank)}.status();
  }
  if (!made.ok()) {
    Refuse(site, arriving.id, made);
    arriving.done(made);
    return nullptr;
  }
  AdviseHugePages(site, arriving.rank, arriving.buffers);
  const CallMatcher::Joined joined =
      calls_.Join(arriving.site, arriving.id, arriving.rank, arriving.at, arriving.refused);
  const std::shared_ptr<MessageCall>& call = joined.call;
  is_new = joined.is_new;
  if (arriving.decision) Announce(site, arriving.id, *arriving.decision);
  decider_.Learn(site, arriving.id);  // the decision may have arrived since Select
  if (is_new) threads_.WatchDeadlines();
  if (!arriving.refused.ok()) driver_.Drive(call, call->Fail(arriving.refused, /*announce=*/true));
  // An earlier failure of the call is processed before the arrivals. If the call failed without a decision, ranks may
  // have arrived with different schedules, and this mismatch must not hide the failure.
  if (!joined.failure.ok()) driver_.Drive(call, call->Fail(joined.failure, /*announce=*/true));
  // If a process ended before its ranks arrived, its end is also processed before the arrivals. The local process may
  // lack the plan with which the other ranks arrived, and this mismatch must not hide the failure.
  for (const GoneProcess& each : joined.gone) {
    if (!HasCome(joined, each.process)) driver_.Drive(call, call->PeerGone(each));
  }
  for (const PeerArrival& peer : joined.early)
    driver_.Drive(call, call->PeerArrived(peer.arrival, peer.process, peer.at));
  for (const GoneProcess& each : joined.gone) driver_.Drive(call, call->PeerGone(each));
  if (!call->Accepts(site.fingerprint()) && !site.HasFingerprint(call->site().fingerprint())) {
    driver_.Drive(call, call->Fail(call->Differs(arriving.rank, site.text()), /*announce=*/true));
  }
  // A call without a schedule fails before the rank's arrival is announced, because other processes regard an arrived
  // rank's schedule as decided.
  if (call->lacks_schedule()) {
    const Clock::time_point now = Clock::now();
    const std::optional<MessageCall::Delay> delay = call->Overdue(now, /*deadline=*/0);
    if (delay) driver_.Drive(call, call->Fail(calls_.DeadlineError(*call, *delay, now), /*announce=*/true));
  }
  return call;
}

void MessageExecutor::OnNotice(uint32_t process, std::string_view bytes) {
  const std::optional<Notice> notice = DecodeNotice(bytes);
  if (!notice) return Lose({process, Malformed(process, bytes.size()), false, Clock::now()});
  if (const auto* arrival = std::get_if<Arrival>(&*notice)) OnArrival(process, *arrival);
  if (const auto* decided = std::get_if<Decided>(&*notice)) OnDecided(process, *decided);
  if (const auto* failure = std::get_if<Failure>(&*notice)) {
    OnFailure(process, *failure);
    StartAllDecided();
  }
}

void MessageExecutor::OnArrival(uint32_t process, const Arrival& arrival) {
  if (const auto call = KeepArrival({process, arrival, Clock::now()})) {
    if (!arrival.waits && !call->Accepts(arrival.fingerprint) && !call->failed()) {
      SendDifference({call->shared_site(), call->first(), call->number()}, process, arrival);
    }
  } else if (const auto finished = calls_.FindFinished(arrival.call)) {
    SendDifference(*finished, process, arrival);
  }
  if (arrival.waits) OnWaiting(process, arrival);
  StartDecided(arrival.call);
}

// Passes the arrival to its call. Returns null if the call is over or has not begun here; a call that has not begun
// receives the arrival when it begins.
std::shared_ptr<MessageCall> MessageExecutor::KeepArrival(PeerArrival peer) {
  const std::shared_ptr<MessageCall> call = calls_.FindOrKeep(peer);
  if (call) driver_.Drive(call, call->PeerArrived(peer.arrival, peer.process, peer.at));
  return call;
}

std::shared_ptr<ScheduleSelector> MessageExecutor::SelectorOf(const MessageSite& site,
                                                              const std::vector<std::shared_ptr<MessageSite>>& others,
                                                              ScheduleSelector::Rule rule, uint64_t step,
                                                              std::vector<ScheduleSelector::LostRail> lost_rails) {
  std::string calls = std::to_string(site.site()) + "|" + site.label().plan + "|" + site.ranks().lists();
  for (const auto& other : others) calls += "|" + other->ranks().lists();
  for (const SiteRanks::Rank& rank : site.ranks()) calls += "|" + std::to_string(rank.device);
  return decider_.SelectorOf(site.communicator(), std::move(calls), rule, step, std::move(lost_rails));
}

void MessageExecutor::ForgetCommunicator(uint64_t communicator) {
  calls_.ForgetCommunicator(communicator);
  decider_.ForgetCommunicator(communicator);
}

// Keeps a site whose calls this process decides, so that OnWaiting finds the site when ranks of other processes wait.
void MessageExecutor::KeepDecided(const std::shared_ptr<const MessageSite>& site) {
  if (!site->decides()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  *decided_.Add({site->communicator(), site->fingerprint()}).value = site;
}

// Selects the site whose lists the rank's call runs. Returns false if the decision has not arrived yet.
bool MessageExecutor::Select(ArrivingRank& arriving) {
  const MessageSite& site = *arriving.site;
  if (site.selector() == nullptr && !site.follows_plans()) return true;
  // If calls follow plans, the deadline counts from the decision on the plan. That decision has its own time limits.
  if (site.follows_plans()) arriving.at = Clock::now();
  const std::optional<Decider::Choice> choice = decider_.Choose(site, arriving.id, arriving.rank);
  if (!choice) return !arriving.refused.ok();
  if (choice->taken) arriving.decision = choice->taken;
  const auto follow = [&](const PlanSelector::Plan& plan) -> Result<std::shared_ptr<const MessageSite>> {
    return plan.ok() ? site.Following(plan.value()) : plan.status();
  };
  const auto selected = choice->plan ? follow(*choice->plan) : site.With(choice->schedule);
  if (arriving.refused.ok()) arriving.refused = selected.status();
  if (selected.ok()) arriving.site = selected.value();
  return true;
}

void MessageExecutor::Announce(const MessageSite& site, const CallId& id, const ScheduleSelector::Decision& decision) {
  decider_.Add(site.process(), id, decision);  // keeps the decision for other selectors of the same calls
  driver_.SendNotice(site.ranks().others(), Encode(Decided{id, decision}));
}

void MessageExecutor::OnDecided(uint32_t process, const Decided& decided) {
  decider_.Add(process, decided.call, decided.decision);
  if (const auto call = calls_.Find(decided.call)) decider_.Learn(call->site(), decided.call);
  StartDecided(decided.call);
}

// Called when a rank of another process waits for a decision. If this process has decided the call already, it
// announces the decision again, because the other process may have dropped the first announcement or not received it
// yet.
void MessageExecutor::OnWaiting(uint32_t process, const Arrival& arrival) {
  std::shared_ptr<const MessageSite> site;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* const known = decided_.Find({arrival.call.communicator, arrival.fingerprint});
    if (known != nullptr) site = known->lock();
  }
  if (!site) return;
  const std::optional<ScheduleSelector::Decision> decision = decider_.Find(*site, arrival.call);
  if (decision) {
    driver_.SendNotice({process}, Encode(Decided{arrival.call, *decision}));
    transport().Flush();
  } else if (site->selector()->by_turns()) {
    DecideByTurns(site, arrival.call);
  }
}

// Decides the call if at most one rank has not arrived. If the missing rank does not count as late yet, tries again
// when the rank counts as late. Several threads may decide at once; the selector takes the first decision. If memory
// runs out, the call fails on all ranks.
void MessageExecutor::DecideByTurns(const std::shared_ptr<const MessageSite>& site, const CallId& id) {
  const uint64_t fingerprint = site->fingerprint();  // a call of another step may have the same name
  std::vector<bool> here(site->ranks().size());
  Clock::time_point latest = Clock::time_point::min();
  calls_.EachEarly(id, [&](const PeerArrival& peer) {
    const uint32_t rank = peer.arrival.rank;
    if (!peer.arrival.waits || peer.arrival.fingerprint != fingerprint) return;
    if (rank >= here.size() || site->ranks()[rank].process != peer.process) return;
    here[rank] = true;
    latest = std::max(latest, peer.at);
  });
  const Decider::Turn turn = decider_.DecideByTurns(*site, id, here, latest);
  if (turn.wait) {
    return threads_.timer().After(*turn.wait, [this, id, weak = std::weak_ptr<const MessageSite>(site)] {
      const User user(driver_.users());
      const std::shared_ptr<const MessageSite> still = weak.lock();
      if (!still || !is_connected()) return;
      DecideByTurns(still, id);
      StartDecided(id);
    });
  }
  if (!turn.taken) return;
  Announce(*site, id, *turn.taken);
  transport().Flush();
}

// Makes the rank wait for the decision. Announces the rank's arrival to the other processes at once.
void MessageExecutor::Wait(ArrivingRank arriving) {
  const std::shared_ptr<const MessageSite> site = arriving.site;
  const Arrival arrival{arriving.id,         arriving.rank, site->ranks()[arriving.rank].device,
                        site->fingerprint(), site->text(),  /*waits=*/true};
  driver_.SendNotice(site->ranks().locals()[*site->ranks().FindLocal(arriving.rank)].others, Encode(arrival));
  transport().Flush();
  if (site->selector()) KeepArrival({site->process(), arrival, arriving.at});
  // Copied before the rank is queued, because another thread may take a queued rank and end the rank's call.
  const CallId id = arriving.id;
  waiting_.Add(arriving, [this] { threads_.WatchDeadlines(); });
  transport().Expect();
  if (site->decides() && site->selector()->by_turns()) DecideByTurns(site, id);
  StartDecided(id);  // the decision or an error may have arrived before the rank was queued
}

// Whether a process has ended without joining the call.
bool MessageExecutor::LacksProcess(const ArrivingRank& arriving) const {
  const std::vector<uint32_t>& others = arriving.site->ranks().others();
  return std::any_of(others.begin(), others.end(), [&](uint32_t process) {
    if (!calls_.IsGone(process)) return false;
    bool has_joined = false;
    calls_.EachEarly(arriving.id, [&](const PeerArrival& peer) {
      has_joined = has_joined || (peer.process == process && !peer.arrival.waits);
    });
    return !has_joined;
  });
}

// Whether the rank waits for a decision that will never arrive, because a rank of another process has joined a
// different call with the same id.
bool MessageExecutor::Differs(const ArrivingRank& arriving) const {
  if (!arriving.site->selector()) return false;
  bool differs = false;
  calls_.EachEarly(arriving.id, [&](const PeerArrival& peer) {
    differs = differs || !arriving.site->HasFingerprint(peer.arrival.fingerprint);
  });
  return differs;
}

// Whether the rank's call is decided or must fail, for instance because the rank arrived no later than `overdue`.
bool MessageExecutor::MayStart(ArrivingRank& arriving, Clock::time_point overdue) {
  const bool fails = LacksProcess(arriving) || Differs(arriving) || !calls_.FindFailure(arriving.id).ok();
  return Select(arriving) || arriving.at <= overdue || fails;
}

// Makes a rank join its call after the rank has waited.
void MessageExecutor::Start(ArrivingRank& arriving) {
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
  if (is_new) transport().Expect();
  if (!call) return;
  driver_.Drive(call, call->Arrive(arriving.rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at));
}

// Starts the ranks that wait at the call's site, if they may start. A decision concerns only this site's ranks, in this
// launch or the next one. A failure may also concern ranks that wait at other sites; the deadline watch starts those
// ranks within a quarter of a second.
void MessageExecutor::StartDecided(const CallId& call) {
  Start(waiting_.Take(call, [this](ArrivingRank& rank) { return MayStart(rank, Clock::time_point::min()); }));
}

void MessageExecutor::StartAllDecided(Clock::time_point overdue) {
  Start(waiting_.TakeAll([&](ArrivingRank& rank) { return MayStart(rank, overdue); }));
}

// If a rank's graphs are missing, a worker makes the graphs. This thread may be the transport's, and all calls would
// wait while the transport's thread makes graphs.
void MessageExecutor::Start(std::vector<ArrivingRank> ranks) {
  for (ArrivingRank& rank : ranks) {
    if (rank.site->has_graphs()) {
      StartTaken(rank);
      continue;
    }
    const auto kept = std::make_shared<ArrivingRank>(std::move(rank));
    threads_.workers().Submit({[this, kept, user = User(driver_.users())] { StartTaken(*kept); }});
  }
}

void MessageExecutor::StartTaken(ArrivingRank& rank) {
  const Finally end([this] {
    transport().EndExpecting();
    waiting_.EndStarting();
  });
  Start(rank);
}

void MessageExecutor::Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) {
  const User user(driver_.users());
  if (is_connected()) Refuse(site, calls_.Name(site, run, rank).id, why);
}

void MessageExecutor::Refuse(const MessageSite& site, const CallId& id, const Status& why) {
  const User user(driver_.users());
  if (!is_connected()) return;
  const std::shared_ptr<MessageCall> call = calls_.AddFailure(id, why, site.step());
  driver_.SendFailure(site, id, why);
  if (call) driver_.Drive(call, call->Fail(why, /*announce=*/false));  // fails the process's other ranks
}

bool MessageExecutor::FailOverdue(Clock::time_point now, double deadline) {
  const User user(driver_.users());
  StartAllDecided(now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline)));
  for (const auto& call : calls_.All()) {
    if (const std::optional<MessageCall::Delay> delay = call->Overdue(now, deadline)) {
      driver_.Drive(call, call->Fail(calls_.DeadlineError(*call, *delay, now), /*announce=*/true));
    }
  }
  return waiting();
}

void MessageExecutor::OnFailure(uint32_t process, Failure failure) {
  if (failure.gone) {  // records the process's end before the failure that names the process
    const Status why(Code::kInternal, "process " + std::to_string(process) + " reports: " + failure.gone->why);
    calls_.AddReported(process, {failure.gone->process, why, failure.gone->has_left, Clock::now()});
    failure.why = failure.why.CausedByEndOf(failure.gone->process);
  }
  if (calls_.FindFinished(failure.call)) return;
  const std::shared_ptr<MessageCall> call = calls_.AddFailure(failure.call, failure.why, failure.step);
  if (call && call->site().ranks().Knows(process)) driver_.Drive(call, call->Fail(failure.why, /*announce=*/false));
  // Without Cancel, the messages of a call that no rank here has joined would occupy the transport's memory forever.
  Transport* const connected = driver_.transport();
  if (!call && connected != nullptr) connected->Cancel(failure.call);
}

// Reports to the other processes that the arriving rank's call differs from `call`. A call that has ended in this
// process can no longer fail in this process, but ranks of other processes may still wait in the call.
void MessageExecutor::SendDifference(const CallMatcher::Finished& call, uint32_t process, const Arrival& arrival) {
  const MessageSite& site = *call.site;
  if (arrival.rank >= site.ranks().size() || site.ranks()[arrival.rank].process != process) return;
  if (arrival.fingerprint == site.fingerprint()) return;
  driver_.SendFailure(site, arrival.call,
                      site.Differs(site.NameCall(call.number), arrival.rank, arrival.text, call.first));
  transport().Cancel(arrival.call);
}

void MessageExecutor::Lose(const GoneProcess& found) {
  const GoneProcess gone = calls_.AddGone(found);
  for (const auto& call : calls_.All()) {
    if (call->site().ranks().HasRankOf(gone.process)) driver_.Drive(call, call->PeerGone(gone));
  }
  StartAllDecided();
}

Status MessageExecutor::Disconnect(Clock::time_point limit) {
  closing_ = true;  // set before users() is read, so that later users find closing_ set and do not use the transport
  plans().Fail(Status(Code::kInternal, "this process has left the job"));
  while (driver_.users() > 0 || waiting()) {
    if (Clock::now() >= limit) {
      return Status(Code::kDeadlineExceeded,
                    "calls between the processes of the job that was shut down have not ended.\n"
                    "  Cure: wait for their results before jax.distributed.shutdown().");
    }
    std::this_thread::sleep_for(kPoll);
  }
  driver_.Disconnect();
  calls_.Clear();
  decider_.Clear();
  std::lock_guard<std::mutex> lock(mutex_);
  decided_.Clear();
  return Status();
}

}  // namespace jaxcomm

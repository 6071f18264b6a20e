// Ranks join their calls: those of this process by Arrive, those of others by their notices.
#include "cc/executor/message_executor.h"

#include <algorithm>
#include <new>
#include <optional>

#include "cc/executor/message_driver.h"

namespace jaxcomm {
namespace {

Status Malformed(uint32_t process, size_t bytes) {
  return Status(Code::kInternal, "process " + std::to_string(process) + " has been cut off: it sent a notice of " +
                                     std::to_string(bytes) + " bytes that cannot be read.\n" +
                                     "  Cure: run the same jaxcomm in all processes.");
}

// Whether a rank of the process is known to have come to the call.
bool HasCome(const CallMatcher::Joined& joined, uint32_t process) {
  return std::any_of(joined.early.begin(), joined.early.end(),
                     [process](const PeerArrival& peer) { return peer.process == process && !peer.arrival.waits; });
}

}  // namespace

void MessageExecutor::Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused) {
  const User user(users_);
  if (Status status = Check(*site); !status.ok()) {
    Refuse(*site, run, rank, status);
    return done(status);
  }
  const Clock::time_point now = Clock::now();
  const auto [id, failure] = calls_.Name(*site, run, rank);
  Arriving arriving{site, id, rank, std::move(buffers), std::move(done), now, refused.ok() ? failure : refused};
  KeepDecided(site);
  if (!Select(arriving)) return Wait(std::move(arriving));
  if (Exchange(arriving, /*may_wait=*/calls_.open() == 0)) return arriving.done(Status());
  Begin(std::move(arriving));
  if (site->selector()) StartDecided(id);
}

bool MessageExecutor::Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                             Buffers buffers, Done done, const Status& refused, bool helps) {
  const User user(users_);
  if (Status status = Check(*site); !status.ok()) {
    Refuse(*site, id, status);
    done(status);
    return true;
  }
  Arriving arriving{site, id, rank, std::move(buffers), std::move(done), Clock::now(), refused};
  KeepDecided(site);
  if (!Select(arriving)) {
    Wait(std::move(arriving));
    return true;
  }
  if (Exchange(arriving, /*may_wait=*/helps)) {
    arriving.done(Status());
    return false;
  }
  {
    Driver driver;
    driver.helps = helps;
    const Driver::Current current(driver);
    bool is_new = false;
    const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
    if (is_new && helps) ++unexpected_;
    if (is_new && !helps) transport_.load()->Expect();
    if (call) {
      driver.work.push_back(
          {call, call->Arrive(rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at)});
    }
    try {
      Run(driver);
    } catch (const std::bad_alloc&) {
      FailWithoutMemory(call, rank);
    }
  }
  if (site->selector()) StartDecided(id);
  return true;
}

// Whether calls can run at all.
Status MessageExecutor::Check(const MessageSite& site) const {
  if (!is_connected()) {
    return Status(Code::kInternal, site.text() + ": the processes of the job are not connected.\n  Cure: call " +
                                       "jaxcomm.init() after jax.distributed.initialize().");
  }
  return threads_.Start() ? Status() : CallThreads::NoThread(site.NameCall().Text());
}

void MessageExecutor::Begin(Arriving arriving) {
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
  if (!call) {
    if (is_new) transport_.load()->Expect();  // which its failure has ended
    return;
  }
  Driver driver;
  driver.call = call.get();
  driver.rank = arriving.rank;
  driver.work.push_back(
      {call, call->Arrive(arriving.rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at)});
  try {
    if (MayHelp(*call)) {
      Help(driver, [&] { return driver.own.has_value(); });
    } else {
      Run(driver);
    }
  } catch (const std::bad_alloc&) {
    FailWithoutMemory(call, arriving.rank);
  }
  if (is_new) transport_.load()->Expect();
  if (driver.own) driver.own->done(driver.own->status);
}

// The call of the rank, which knows by then what other processes have sent of it. Null: the process has no memory for
// the call, or a list of its schedule is invalid, and the rank has got that error.
std::shared_ptr<MessageCall> MessageExecutor::Join(const Arriving& arriving, bool& is_new) try {
  const MessageSite& site = *arriving.site;
  if (const Status made = site.MakeGraphs(); !made.ok()) {
    End(arriving, made);
    return nullptr;
  }
  const CallMatcher::Joined joined = calls_.Join(arriving.site, arriving.id, arriving.rank, arriving.at);
  const std::shared_ptr<MessageCall>& call = joined.call;
  is_new = joined.is_new;
  if (arriving.decision) Announce(site, arriving.id, *arriving.decision);
  Learn(site, arriving.id);  // the decision may have come since Select
  if (is_new) threads_.WatchDeadlines();
  if (!arriving.refused.ok()) Drive(call, call->Fail(arriving.refused, /*announce=*/true));
  // Before the arrivals: ranks whose undecided call has failed came with a schedule that may differ from this one.
  if (!joined.failure.ok()) Drive(call, call->Fail(joined.failure, /*announce=*/true));
  // Likewise processes that ended without having come: this one may lack the plan of those that have come.
  for (const GoneProcess& each : joined.gone) {
    if (!HasCome(joined, each.process)) Drive(call, call->PeerGone(each.process, each.why));
  }
  for (const PeerArrival& peer : joined.early) Drive(call, call->PeerArrived(peer.arrival, peer.process, peer.at));
  for (const GoneProcess& each : joined.gone) Drive(call, call->PeerGone(each.process, each.why));
  if (!call->Accepts(site.fingerprint()) && !site.HasFingerprint(call->site().fingerprint())) {
    Drive(call, call->Fail(call->Differs(arriving.rank, site.text()), /*announce=*/true));
  }
  // Before the rank arrives, as the others must not take the schedule for the one that was decided.
  if (call->lacks_schedule()) {
    const Clock::time_point now = Clock::now();
    const std::optional<MessageCall::Delay> delay = call->Overdue(now, /*deadline=*/0);
    if (delay) Drive(call, call->Fail(calls_.DeadlineError(*call, *delay, now), /*announce=*/true));
  }
  return call;
} catch (const std::bad_alloc&) {
  EndWithoutMemory(arriving);
  return nullptr;
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
      SendDifference({call->shared_site(), call->first(), call->name()}, process, arrival);
    }
  } else if (const auto finished = calls_.FindFinished(arrival.call)) {
    SendDifference(*finished, process, arrival);
  }
  if (arrival.waits) OnWaiting(process, arrival);
  StartDecided(arrival.call);
}

// Has the call, if it has begun here, take the arrival; otherwise keeps it for the call. Null: the second.
std::shared_ptr<MessageCall> MessageExecutor::KeepArrival(PeerArrival peer) {
  const std::shared_ptr<MessageCall> call = calls_.FindOrKeep(peer);
  if (call) Drive(call, call->PeerArrived(peer.arrival, peer.process, peer.at));
  return call;
}

}  // namespace jaxcomm

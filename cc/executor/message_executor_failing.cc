// Sends and receives the notices by which processes follow each other's calls.
#include <optional>
#include <string>
#include <utility>

#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

Status Malformed(uint32_t process, size_t bytes) {
  return Status(Code::kInternal, "process " + std::to_string(process) + " has been cut off: it sent a notice of " +
                                     std::to_string(bytes) + " bytes that cannot be read.\n" +
                                     "  Cure: run the same jaxcomm in all processes.");
}

}  // namespace

void MessageExecutor::SendNotice(const std::vector<uint32_t>& processes, const std::string& notice) {
  for (const uint32_t process : processes) transport_.load()->Notify(process, notice);
}

// Of a call that is over here, and so does not fail: others may wait for its ranks.
void MessageExecutor::TellDifference(const Finished& call, uint32_t process, const Arrival& arrival) {
  const MessageSite& site = *call.site;
  if (arrival.rank >= site.ranks().size() || site.ranks()[arrival.rank].process != process) return;
  if (arrival.fingerprint == site.fingerprint()) return;
  TellFailure(site, arrival.call, site.Differs(call.name, arrival.rank, arrival.text, call.first));
  transport_.load()->Cancel(arrival.call);
}

// Where ranks disagree, those of other groups may be wrong as well; a rank that is late concerns its group only.
void MessageExecutor::TellFailure(const MessageSite& site, const CallId& id, const Status& why) {
  SendNotice(why.code() == Code::kInvalidArgument ? site.everybody() : site.others(),
             Encode(Failure{id, why, site.step(), GoneOf(site, why)}));
  transport_.load()->Flush();
}

// The process of the site that the error names as gone.
std::optional<Failure::Gone> MessageExecutor::GoneOf(const MessageSite& site, const Status& why) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [process, gone] : gone_) {
    const bool is_named = why.message().find(gone.why.message()) != std::string::npos;
    if (is_named && site.HasRankOf(process)) return Failure::Gone{process, gone.has_left};
  }
  return std::nullopt;
}

// The call that a rank has come to; none: it is over, or has not begun here, and the arrival is kept for it.
std::shared_ptr<MessageCall> MessageExecutor::FindOrKeep(PeerArrival arrival) {
  std::lock_guard<std::mutex> lock(mutex_);
  const CallId id = arrival.arrival.call;
  if (auto call = calls_.Find(id)) return call;
  if (finished_.Find(id)) return nullptr;
  early_.Keep(id, std::move(arrival));
  return nullptr;
}

std::optional<MessageExecutor::Finished> MessageExecutor::FindFinished(const CallId& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Finished* const finished = finished_.Find(id);
  return finished ? std::optional<Finished>(*finished) : std::nullopt;
}

// The call that has failed; none: it has not begun here, and will fail when it does.
std::shared_ptr<MessageCall> MessageExecutor::FindOrFail(const Failure& failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  failures_.Add(failure.call, failure.why, failure.step);
  return calls_.Find(failure.call);
}

void MessageExecutor::OnNotice(uint32_t process, std::string_view bytes) {
  const std::optional<Notice> notice = DecodeNotice(bytes);
  const Clock::time_point now = Clock::now();
  if (!notice) return Lose({process, Malformed(process, bytes.size()), false, now});
  if (const auto* arrival = std::get_if<Arrival>(&*notice)) {
    Remember(arrival->device, arrival->call, arrival->text, now);
    const auto call = FindOrKeep({process, *arrival, now});
    if (call) {
      Drive(call, call->PeerArrived(*arrival, process, now));
      const bool differs = !arrival->waits && arrival->fingerprint != call->site().fingerprint();
      if (differs && !call->failed()) {
        TellDifference({call->shared_site(), call->first(), call->name()}, process, *arrival);
      }
    } else if (const std::optional<Finished> finished = FindFinished(arrival->call)) {
      TellDifference(*finished, process, *arrival);
    }
    StartDecided(/*overdue=*/Clock::time_point::min());
  } else if (const auto* failure = std::get_if<Failure>(&*notice)) {
    if (failure->gone) {  // before the error that names it
      const std::string name = "process " + std::to_string(failure->gone->process);
      const std::string end = failure->gone->has_left ? " has left" : " is gone";
      const Status why(Code::kInternal, name + end + ", as process " + std::to_string(process) + " reports");
      std::lock_guard<std::mutex> lock(mutex_);
      reported_gone_.emplace(failure->gone->process,
                             GoneProcess{failure->gone->process, why, failure->gone->has_left, now});
    }
    if (FindFinished(failure->call)) return;
    const auto call = FindOrFail(*failure);
    if (call && call->site().Knows(process)) Drive(call, call->Fail(failure->why, /*announce=*/false));
    // What has come of it would take the transport's room for early messages for good.
    Transport* const transport = transport_.load();
    if (!call && transport != nullptr) transport->Cancel(failure->call);
    StartDecided(/*overdue=*/Clock::time_point::min());
  }
}

void MessageExecutor::Lose(const GoneProcess& gone) {
  std::unique_lock<std::mutex> lock(mutex_);
  gone_.emplace(gone.process, gone);
  const auto calls = calls_.All();
  lock.unlock();
  for (const auto& [id, call] : calls) {
    if (call->site().HasRankOf(gone.process)) Drive(call, call->PeerGone(gone.process, gone.why));
  }
  StartDecided(/*overdue=*/Clock::time_point::min());
}

std::vector<MessageExecutor::GoneProcess> MessageExecutor::gone() const {
  std::vector<GoneProcess> found;
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<uint32_t, GoneProcess> all = gone_;
  all.insert(reported_gone_.begin(), reported_gone_.end());
  for (const auto& [process, gone] : all) found.push_back(gone);
  return found;
}

void MessageExecutor::Remember(uint32_t device, const CallId& id, const std::string& text, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_calls_.Add(device, {id, text, now});
}

}  // namespace jaxcomm

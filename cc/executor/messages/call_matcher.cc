#include "cc/executor/messages/call_matcher.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <utility>

#include "cc/base/json.h"
#include "cc/base/text.h"

namespace jaxcomm {

// Returns the `given_up` argument of CallNames::Next. The caller holds the mutex while Next runs.
auto CallMatcher::GivenUp(const MessageSite& site) const {
  return [this, &site](uint32_t launch) {
    return failures_.IsMissed({site.communicator(), launch, 0, 0}, site.step());
  };
}

CallMatcher::Named CallMatcher::Name(const MessageSite& site, int64_t run, uint32_t rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  Named named{names_.Next(site.communicator(), run, site.site(), rank, GivenUp(site)), Status()};
  for (const CallId& launch : names_.Find(run)) {
    if (!named.failure.ok()) break;
    if (launch.communicator != named.id.communicator) named.failure = failures_.Find(launch);
  }
  return named;
}

CallMatcher::Joined CallMatcher::Join(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                                      Clock::time_point now, const Status& refused) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto [call, is_new] = calls_.Join(
      id, [&](int64_t number) { return std::make_shared<MessageCall>(site, id, number, rank, now, refused); });
  Joined joined{std::move(call), is_new, {}, Status(), {}};
  if (is_new) {
    ++open_;
    joined.early = early_.Take(id);
    joined.failure = failures_.Find(id);
    for (const uint32_t process : site->ranks().others()) {
      if (const auto ended = gone_.find(process); ended != gone_.end()) joined.gone.push_back(ended->second);
    }
  }
  *last_calls_.Add(site->ranks()[rank].device).value = {id, site->process(), site->text(), now};
  return joined;
}

bool CallMatcher::IsUnknown(const MessageSite& site, const CallId& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_gone = [this](uint32_t process) { return gone_.count(process) > 0; };
  return !calls_.Find(id) && !early_.Has(id) && failures_.Find(id).ok() &&
         std::none_of(site.ranks().others().begin(), site.ranks().others().end(), is_gone);
}

int64_t CallMatcher::AddEnded(const MessageSite& site, const CallId& id, const std::vector<uint32_t>& ranks,
                              Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t rank : ranks) {
    const SiteRanks::Rank& ended = site.ranks()[rank];
    LastCall& last = *last_calls_.Add(ended.device).value;
    last.id = id;
    last.process = ended.process;
    last.at = now;
    last.text = site.text();  // reuses the text's memory
  }
  return calls_.Count();
}

std::vector<PeerArrival> CallMatcher::AddSent(const std::shared_ptr<const MessageSite>& site, const CallId& id,
                                              uint32_t rank, Clock::time_point now) {
  const int64_t number = AddEnded(*site, id, {rank}, now);
  std::lock_guard<std::mutex> lock(mutex_);
  sent_.Add(id, {site, rank, number});
  return early_.Take(id);
}

std::shared_ptr<MessageCall> CallMatcher::FindOrKeep(PeerArrival peer) {
  const CallId id = peer.arrival.call;
  std::lock_guard<std::mutex> lock(mutex_);
  *last_calls_.Add(peer.arrival.device).value = {id, peer.process, peer.arrival.text, peer.at};
  std::shared_ptr<MessageCall> call = calls_.Find(id);
  if (!call && !finished_.Find(id) && !sent_.Find(id)) early_.Keep(id, std::move(peer));
  return call;
}

std::shared_ptr<MessageCall> CallMatcher::Find(const CallId& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_.Find(id);
}

std::optional<CallMatcher::Finished> CallMatcher::FindFinished(const CallId& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Finished* finished = finished_.Find(id);
  if (finished == nullptr) finished = sent_.Find(id);
  return finished ? std::optional<Finished>(*finished) : std::nullopt;
}

std::vector<std::shared_ptr<MessageCall>> CallMatcher::All() const {
  std::vector<std::shared_ptr<MessageCall>> calls;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, call] : calls_.All()) calls.push_back(call);
  return calls;
}

size_t CallMatcher::open() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return open_;
}

bool CallMatcher::Close(const MessageCall& call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!calls_.Erase(call.id())) return false;
  --open_;
  if (call.site().is_regrouped()) finished_.Add(call.id(), {call.shared_site(), call.first(), call.number()});
  return true;
}

void CallMatcher::KeepFailed(const MessageCall& call) {
  const Status why = call.failure();
  std::lock_guard<std::mutex> lock(mutex_);
  --open_;
  failures_.Add(call.id(), why, call.site().step());
  calls_.KeepFailed(call.id());
}

std::shared_ptr<MessageCall> CallMatcher::AddFailure(const CallId& id, const Status& why, uint64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  failures_.Add(id, why, step);
  return calls_.Find(id);
}

Status CallMatcher::FindFailure(const CallId& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failures_.Find(id);
}

Status CallMatcher::DeadlineError(const MessageCall& call, const MessageCall::Delay& delay,
                                  Clock::time_point now) const {
  const MessageSite& site = call.site();
  const bool arrived = delay.missing.empty();
  const bool is_silent = arrived && !delay.silent.empty();
  const std::vector<uint32_t>& late = is_silent ? delay.silent : arrived ? delay.unaccepting : delay.missing;
  const std::string where = "\n  This call is at " + site.label().where + ".";
  if (late.empty()) {
    return Status(Code::kDeadlineExceeded,
                  "DeadlineError: " + call.Describe() + ": this process has not finished its own part after " +
                      FormatSeconds(delay.waited) + "." + where,
                  ErrorRecord("DeadlineError", call.name()).Text());
  }
  // The error names the first group that lacks a rank.
  const uint32_t group = site.ranks()[late[0]].group;
  const auto names = [&](const std::vector<uint32_t>& ranks) {
    std::vector<uint32_t> found;
    for (const uint32_t rank : ranks) {
      if (site.ranks()[rank].group == group) found.push_back(site.ranks().NameOf(rank));
    }
    return found;
  };
  const std::vector<uint32_t>& all = site.ranks().groups()[group];
  const std::string everybody =
      site.ranks().are_named() ? "the group " + JoinRanks(names(all)) : std::to_string(all.size());
  std::string places;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t rank : late) {
    places += "\n  Rank " + std::to_string(site.ranks().NameOf(rank)) + " is " + site.ranks().PlaceOf(rank);
    const LastCall* const last = arrived ? nullptr : last_calls_.Find(site.ranks()[rank].device);
    if (last != nullptr) {
      const std::string since = FormatSeconds(now - last->at);
      const bool is_open = calls_.Find(last->id) || early_.Has(last->id);
      places += is_open ? ", and is in " + last->text + ", for " + since
                        : ", and was last in " + last->text + ", " + since + " ago";
    }
    places += ".";
  }
  const char* const done = is_silent              ? "sent all messages"
                           : arrived              ? "accepted all messages"
                           : delay.lack_schedule  ? "received the call's schedule"
                           : delay.lacks_decision ? "sent the call's schedule"
                                                  : "arrived";
  std::vector<uint32_t> waiting;
  std::set_difference(delay.waiting.begin(), delay.waiting.end(), late.begin(), late.end(),
                      std::back_inserter(waiting));
  if (waiting.empty()) waiting = delay.waiting;
  return DeadlineExceeded{call.name(), names(late), names(waiting), everybody, delay.waited, done}.status(
      /*more=*/places + where);
}

std::string CallMatcher::LastCallsJson() const {
  std::ostringstream out;
  const char* comma = "";
  out << "[";
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [device, last] : last_calls_) {
    const auto at = std::chrono::duration_cast<std::chrono::microseconds>(last.at.time_since_epoch());
    const bool is_open = calls_.Find(last.id) || early_.Has(last.id);
    out << std::exchange(comma, ",") << "{\"process\":" << last.process << ",\"device\":" << device
        << ",\"id\":" << HashOf(last.id) << ",\"at_us\":" << at.count()
        << ",\"is_open\":" << (is_open ? "true" : "false") << ",\"call\":";
    WriteJsonString(out, last.text);
    out << "}";
  }
  out << "]";
  return out.str();
}

GoneProcess CallMatcher::AddGone(GoneProcess gone) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto reported = reported_.find(gone.process);
  if (gone.has_left && reported != reported_.end()) gone.cause = {reported->second.process, reported->second.why};
  return gone_.emplace(gone.process, std::move(gone)).first->second;
}

void CallMatcher::AddReported(uint32_t reporter, const GoneProcess& gone) {
  std::lock_guard<std::mutex> lock(mutex_);
  reported_.emplace(reporter, gone);
}

bool CallMatcher::IsGone(uint32_t process) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return gone_.count(process) > 0;
}

std::optional<Failure::Gone> CallMatcher::GoneOf(const MessageSite& site, const Status& why) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<uint32_t> process = why.ended_process();
  const auto gone = process && site.ranks().HasRankOf(*process) ? gone_.find(*process) : gone_.end();
  return gone == gone_.end()
             ? std::nullopt
             : std::optional<Failure::Gone>({*process, gone->second.has_left, gone->second.why.message()});
}

std::vector<GoneProcess> CallMatcher::gone() const {
  std::vector<GoneProcess> found;
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<uint32_t, GoneProcess> all = gone_;
  for (const auto& [reporter, gone] : reported_) all.emplace(gone.process, gone);
  for (const auto& [process, gone] : all) found.push_back(gone);
  return found;
}

void CallMatcher::Forget(const MessageSite& site) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.EraseIf([&](const CallId&, const MessageCall& call) { return call.site().IsOf(site) && call.failed(); });
}

void CallMatcher::ForgetCommunicator(uint64_t communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  names_.Forget(communicator);
}

void CallMatcher::Clear() {
  const auto calls = All();  // keeps the calls and their sites alive until the mutex is released
  BoundedMap<CallId, Finished> finished{kFinishedKept}, sent{kSentKept};
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(finished, finished_);
  std::swap(sent, sent_);
  calls_.Clear();
  names_ = CallNames();
  early_ = EarlyArrivals();
  failures_ = FailedCalls();
  last_calls_.Clear();
  gone_.clear();
  reported_.clear();
}

}  // namespace jaxcomm

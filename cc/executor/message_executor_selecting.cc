// Selects the schedule of each call: the one of its site, the plan's of the run, or one of several by a process's
// decision, as schedule_selector.h describes.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/hash.h"
#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

std::string Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return std::to_string(bits);
}

}  // namespace

std::shared_ptr<ScheduleSelector> MessageExecutor::SelectorOf(const MessageSite& site,
                                                              const std::vector<std::shared_ptr<MessageSite>>& others,
                                                              ScheduleSelector::Rule rule, uint64_t step,
                                                              std::vector<ScheduleSelector::Fence> fences) {
  std::string calls = std::to_string(site.site()) + "|" + site.label().plan + "|" + std::to_string(rule.rank) + "|" +
                      Bits(rule.seconds) + (rule.tries ? "|tries" : "") + "|" + site.lists();
  for (const auto& other : others) calls += "|" + other->lists();
  for (const MessageSite::Rank& rank : site.ranks()) calls += "|" + std::to_string(rank.device);
  for (const auto& [rank, rail, schedule] : fences) {
    calls += "|" + std::to_string(rank) + ":" + std::to_string(rail) + ":" + std::to_string(schedule);
  }
  const uint64_t id = Hash(calls);
  // Each step has selectors of its own where one known rank may be late. By turns a process decides on calls that its
  // ranks have yet to join, and does not know their steps, which need not be alike in all processes. A fence concerns
  // all steps.
  if (rule.rank < ScheduleSelector::kNoRank) calls += "|" + std::to_string(step);
  std::lock_guard<std::mutex> lock(deciding_);
  auto& selectors = selectors_.try_emplace(site.communicator(), kSelectors).first->second;
  std::shared_ptr<ScheduleSelector>& selector = *selectors.Add(calls).value;
  if (!selector) selector = std::make_shared<ScheduleSelector>(rule, id, std::move(fences));
  return selector;
}

void MessageExecutor::ForgetCommunicator(uint64_t communicator) {
  calls_.ForgetCommunicator(communicator);
  std::lock_guard<std::mutex> lock(deciding_);
  selectors_.erase(communicator);
}

// If this process decides on the site's calls, it finds the site from now on when others wait in one.
void MessageExecutor::KeepDecided(const std::shared_ptr<const MessageSite>& site) {
  if (!site->decides()) return;
  std::lock_guard<std::mutex> lock(deciding_);
  *decided_.Add({site->communicator(), site->fingerprint()}).value = site;
}

// Selects the site whose lists the rank's call runs; false: a decision has yet to arrive.
bool MessageExecutor::Select(Arriving& arriving) {
  const std::shared_ptr<const MessageSite> site = arriving.site;
  if (site->follows_plans()) {
    arriving.at = Clock::now();  // the deadline counts from the decision, for which the processes have limits
    const auto plan = plans_.Select(arriving.id.communicator, arriving.id.launch, site->step());
    if (!plan) return !arriving.refused.ok();
    const auto planned = plan->ok() ? site->Following(plan->value()) : plan->status();
    if (planned.ok()) arriving.site = planned.value();
    if (arriving.refused.ok()) arriving.refused = planned.status();
    return true;
  }
  if (!site->selector()) return true;
  ScheduleSelector& selector = *site->selector();
  Learn(*site, arriving.id);
  // By turns its call is decided when others have come, or has been announced.
  const bool decides = arriving.rank == selector.decider() && (!selector.by_turns() || selector.Find(arriving.id));
  if (decides && !arriving.decision)
    arriving.decision = selector.Decide(arriving.id, selector.first(), lost_rails_.Find(*site));
  const std::optional<uint32_t> schedule = selector.Find(arriving.id);
  if (schedule) arriving.site = site->With(*schedule);
  return schedule || !arriving.refused.ok();
}

// Has the selector receive the decision about a call, if it has come.
void MessageExecutor::Learn(const MessageSite& site, const CallId& id) const {
  if (!site.selector()) return;
  const auto decision = calls_.FindDecision(site.ranks()[site.selector()->decider()].process, id);
  if (decision) site.selector()->Receive(id, *decision);
}

void MessageExecutor::Announce(const MessageSite& site, const CallId& id, const ScheduleSelector::Decision& decision) {
  calls_.AddDecision(site.process(), {id, decision});  // for other selectors of this process, of the same calls
  SendNotice(site.others(), Encode(Decided{id, decision}));
}

void MessageExecutor::OnDecided(uint32_t process, const Decided& decided) {
  calls_.AddDecision(process, decided);
  if (const auto call = calls_.Find(decided.call)) Learn(call->site(), decided.call);
  StartDecided(decided.call);
}

// A rank of another process waits for a decision. If this process decides its call and has done so, the announcement
// has crossed the arrival, or was lost there among many.
void MessageExecutor::OnWaiting(uint32_t process, const Arrival& arrival) {
  std::shared_ptr<const MessageSite> site;
  {
    std::lock_guard<std::mutex> lock(deciding_);
    const auto* const known = decided_.Find({arrival.call.communicator, arrival.fingerprint});
    if (known != nullptr) site = known->lock();
  }
  if (!site) return;
  std::optional<ScheduleSelector::Decision> decision = calls_.FindDecision(site->process(), arrival.call);
  if (!decision) decision = site->selector()->FindDecision(arrival.call);
  if (decision) {
    SendNotice({process}, Encode(Decided{arrival.call, *decision}));
    transport_.load()->Flush();
  } else if (site->selector()->by_turns()) {
    DecideByTurns(site, arrival.call);
  }
}

// Decides as soon as all ranks but one are known to have come and the last one is not about to. Several threads may do
// so at once: the selector takes the first decision. Where memory runs out, the call's ranks end with an error.
void MessageExecutor::DecideByTurns(const std::shared_ptr<const MessageSite>& site, const CallId& id) try {
  const uint64_t fingerprint = site->fingerprint();  // other steps have calls of this name, too
  std::vector<bool> here(site->ranks().size());
  Clock::time_point latest = Clock::time_point::min();
  calls_.EachEarly(id, [&](const PeerArrival& peer) {
    const uint32_t rank = peer.arrival.rank;
    if (!peer.arrival.waits || peer.arrival.fingerprint != fingerprint) return;
    if (rank >= here.size() || site->ranks()[rank].process != peer.process) return;
    here[rank] = true;
    latest = std::max(latest, peer.at);
  });
  ScheduleSelector& selector = *site->selector();
  const std::optional<uint32_t> schedule = ScheduleSelector::FindMissing(here);
  if (!schedule) return;
  const Clock::duration left = latest + selector.grace() - Clock::now();
  if (*schedule != ScheduleSelector::kDefault && left > Clock::duration::zero()) {
    return threads_.timer().After(left, [this, id, weak = std::weak_ptr<const MessageSite>(site)] {
      const User user(users_);
      const std::shared_ptr<const MessageSite> still = weak.lock();
      if (!still || !is_connected()) return;
      try {
        DecideByTurns(still, id);
        StartDecided(id);
      } catch (const std::bad_alloc&) {
        // The watch of deadlines does it.
      }
    });
  }
  const std::optional<ScheduleSelector::Decision> decision = selector.Decide(id, *schedule, lost_rails_.Find(*site));
  if (!decision) return;
  Announce(*site, id, *decision);
  transport_.load()->Flush();
} catch (const std::bad_alloc&) {
  Refuse(*site, id, NoMemory{site->NameCall(), site->NameOf(site->locals()[0].rank)}.status());
}

}  // namespace jaxcomm

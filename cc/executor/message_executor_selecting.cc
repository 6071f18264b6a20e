// Selects the schedule of each call: the one of its site, the plan's of the run, or one of two by a rank's decision.
// Ranks wait here for what has yet to be decided.
#include <algorithm>
#include <new>
#include <optional>

#include "cc/executor/message_executor.h"

namespace jaxcomm {

std::shared_ptr<ScheduleSelector> MessageExecutor::SelectorOf(const MessageSite& site, const MessageSite& other,
                                                              ScheduleSelector::Rule rule, uint64_t step) {
  std::string calls = std::to_string(step) + "|" + std::to_string(site.site()) + "|" + site.label().plan + "|" +
                      site.lists() + "|" + other.lists() + "|" + std::to_string(rule.rank) + "|" +
                      std::to_string(rule.seconds) + (rule.tries ? "|tries" : "");
  for (const MessageSite::Rank& rank : site.ranks()) calls += "|" + std::to_string(rank.device);
  std::lock_guard<std::mutex> lock(deciding_);
  auto& selectors = selectors_.try_emplace(site.communicator(), kSelectors).first->second;
  std::shared_ptr<ScheduleSelector>& selector = *selectors.Add(calls).value;
  if (!selector) selector = std::make_shared<ScheduleSelector>(rule);
  return selector;
}

void MessageExecutor::ForgetCommunicator(uint64_t communicator) {
  calls_.ForgetCommunicator(communicator);
  std::lock_guard<std::mutex> lock(deciding_);
  selectors_.erase(communicator);
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
  if (!site->early()) return true;
  ScheduleSelector& selector = *site->selector();
  std::optional<bool> is_early;
  if (arriving.rank == selector.decider()) {
    arriving.decision = selector.Decide(arriving.id);
    is_early = arriving.decision.is_early;
  } else {
    for (const PeerArrival& peer : calls_.FindEarly(arriving.id)) {
      const bool decides = peer.arrival.rank == selector.decider();
      if (decides && peer.process == site->ranks()[selector.decider()].process)
        selector.Receive(arriving.id, peer.arrival.decision);
    }
    is_early = selector.Find(arriving.id);
  }
  if (is_early.value_or(false)) arriving.site = site->early();
  return is_early || !arriving.refused.ok();
}

// The rank waits for the decision; the others receive its arrival now.
void MessageExecutor::Wait(Arriving arriving) {
  const std::shared_ptr<const MessageSite> site = arriving.site;
  const Arrival arrival{arriving.id,         arriving.rank, site->ranks()[arriving.rank].device,
                        site->fingerprint(), site->text(),  {},
                        /*waits=*/true};
  SendNotice(site->locals()[*site->FindLocal(arriving.rank)].others, Encode(arrival));
  transport_.load()->Flush();
  // From here on the rank is another thread's, which may end its call.
  {
    std::lock_guard<std::mutex> lock(deciding_);
    undecided_.push_back(std::move(arriving));
  }
  transport_.load()->Expect();
  threads_.WatchDeadlines();
  StartDecided();  // the selector or an error may have arrived meanwhile
}

// Whether a process has ended that has not joined the call.
bool MessageExecutor::LacksProcess(const Arriving& arriving) const {
  const std::vector<uint32_t>& others = arriving.site->others();
  return std::any_of(others.begin(), others.end(), [&](uint32_t process) {
    if (!calls_.IsGone(process)) return false;
    const std::vector<PeerArrival> early = calls_.FindEarly(arriving.id);
    return std::none_of(early.begin(), early.end(),
                        [process](const PeerArrival& peer) { return peer.process == process && !peer.arrival.waits; });
  });
}

// Whether the rank's call is decided, or fails: a process has ended, or the rank came before `overdue`.
bool MessageExecutor::MayStart(Arriving& arriving, Clock::time_point overdue) try {
  const bool fails = LacksProcess(arriving) || !calls_.FindFailure(arriving.id).ok();
  return Select(arriving) || arriving.at <= overdue || fails;
} catch (const std::bad_alloc&) {
  return false;  // the watch of deadlines asks again
}

// Starts the calls that may.
void MessageExecutor::StartDecided(Clock::time_point overdue) {
  std::vector<Arriving> ready;
  {
    std::lock_guard<std::mutex> lock(deciding_);
    ready.reserve(undecided_.size());
    for (size_t i = 0; i < undecided_.size();) {
      if (!MayStart(undecided_[i], overdue)) {
        ++i;
        continue;
      }
      ready.push_back(std::move(undecided_[i]));
      undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    starting_ += ready.size();
  }
  for (Arriving& rank : ready) {
    bool is_new = false;
    const std::shared_ptr<MessageCall> call = Join(rank, is_new);
    if (call) Drive(call, call->Arrive(rank.rank, std::move(rank.buffers), std::move(rank.done), Clock::now(), {}));
    if (is_new) transport_.load()->Expect();
    transport_.load()->EndExpecting();
  }
  if (ready.empty()) return;
  std::lock_guard<std::mutex> lock(deciding_);
  starting_ -= ready.size();
}

bool MessageExecutor::waiting() const {
  {
    std::lock_guard<std::mutex> lock(deciding_);
    if (!undecided_.empty() || starting_ > 0) return true;
  }
  return calls_.open() > 0;
}

}  // namespace jaxcomm

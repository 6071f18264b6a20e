// Decides which of two schedules the calls of a site run: one rank chooses, the others wait for its choice.
#include <algorithm>
#include <optional>

#include "cc/executor/message_executor.h"

namespace jaxcomm {

std::shared_ptr<StepChoice> MessageExecutor::ChoiceOf(const MessageSite& site, const MessageSite& other,
                                                      StepChoice::Rule rule) {
  std::string calls = std::to_string(site.site()) + "|" + site.label().plan + "|" + site.lists() + "|" + other.lists() +
                      "|" + std::to_string(rule.rank) + "|" + std::to_string(rule.below) + (rule.tries ? "|tries" : "");
  for (const MessageSite::Rank& rank : site.ranks()) calls += "|" + std::to_string(rank.device);
  std::lock_guard<std::mutex> lock(deciding_);
  std::shared_ptr<StepChoice>& choice = choices_[{site.communicator(), calls}];
  if (!choice) choice = std::make_shared<StepChoice>(rule);
  return choice;
}

void MessageExecutor::ForgetCommunicator(uint64_t communicator) {
  calls_.ForgetCommunicator(communicator);
  std::lock_guard<std::mutex> lock(deciding_);
  for (auto at = choices_.begin(); at != choices_.end();) {
    at = at->first.first == communicator ? choices_.erase(at) : std::next(at);
  }
}

// The site whose lists the call runs, and the rank's choice if it decides; null: the choice has not arrived.
std::shared_ptr<const MessageSite> MessageExecutor::Chosen(const std::shared_ptr<const MessageSite>& site,
                                                           const CallId& id, uint32_t rank,
                                                           StepChoice::Said& said) const {
  if (!site->other()) return site;
  StepChoice& choice = *site->choice();
  if (rank == choice.decider()) {
    said = choice.Decide(id);
    return said.here ? site->other() : site;
  }
  for (const PeerArrival& peer : calls_.FindEarly(id)) {
    const bool decides = peer.arrival.rank == choice.decider();
    if (decides && peer.process == site->ranks()[choice.decider()].process) choice.Heard(id, peer.arrival.said);
  }
  const std::optional<bool> is_other = choice.Find(id);
  return !is_other ? nullptr : *is_other ? site->other() : site;
}

// The rank waits for the choice; the others receive its arrival now.
void MessageExecutor::Wait(Arriving arriving) {
  const std::shared_ptr<const MessageSite> site = arriving.site;
  const Arrival arrival{arriving.id,         arriving.rank, site->ranks()[arriving.rank].device,
                        site->fingerprint(), site->text(),  {},
                        /*waits=*/true};
  {
    std::lock_guard<std::mutex> lock(deciding_);
    undecided_.push_back(std::move(arriving));
  }
  transport_.load()->Expect();
  threads_.WatchDeadlines();
  SendNotice(site->everybody(), Encode(arrival));
  transport_.load()->Flush();
  StartDecided();  // the choice or an error may have arrived meanwhile
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

// Starts the calls that are decided, and those that fail as a process has ended or as their ranks came before
// `overdue`.
void MessageExecutor::StartDecided(Clock::time_point overdue) {
  std::vector<Arriving> ready;
  {
    std::lock_guard<std::mutex> lock(deciding_);
    for (size_t i = 0; i < undecided_.size();) {
      Arriving& rank = undecided_[i];
      StepChoice::Said said;  // no rank that decides waits
      std::shared_ptr<const MessageSite> chosen = Chosen(rank.site, rank.id, rank.rank, said);
      const bool fails = rank.at <= overdue || LacksProcess(rank) || !calls_.FindFailure(rank.id).ok();
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
  for (Arriving& rank : ready) {
    bool is_new = false;
    const std::shared_ptr<MessageCall> call = Join(rank, /*refused=*/Status(), is_new);
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

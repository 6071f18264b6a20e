// Ranks wait here for the schedules of their calls that have yet to be decided, and begin their calls then.
#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "cc/base/finally.h"
#include "cc/executor/message_executor.h"

namespace jaxcomm {
namespace {

// Whether there is memory for `size` ranks; without it, the watch of deadlines asks again.
template <typename T>
bool Reserve(std::vector<T>& ranks, size_t size) try {
  ranks.reserve(size);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace

// The rank waits for the decision; the others receive its arrival now.
void MessageExecutor::Wait(Arriving arriving) {
  const std::shared_ptr<const MessageSite> site = arriving.site;
  const Arrival arrival{arriving.id,         arriving.rank, site->ranks()[arriving.rank].device,
                        site->fingerprint(), site->text(),  /*waits=*/true};
  SendNotice(site->locals()[*site->FindLocal(arriving.rank)].others, Encode(arrival));
  transport_.load()->Flush();
  if (site->selector()) KeepArrival({site->process(), arrival, arriving.at});
  // From here on the rank is another thread's, which may end its call.
  const CallId id = arriving.id;
  try {
    std::lock_guard<std::mutex> lock(deciding_);  // so that a watch that ends meanwhile finds the rank
    threads_.WatchDeadlines();
    undecided_[{id.communicator, id.site}].push_back(std::move(arriving));
  } catch (const std::bad_alloc&) {
    return EndWithoutMemory(arriving);  // which has not moved
  }
  transport_.load()->Expect();
  try {
    if (site->decides() && site->selector()->by_turns()) DecideByTurns(site, id);
    StartDecided(id);  // the decision or an error may have arrived meanwhile
  } catch (const std::bad_alloc&) {
    // The watch of deadlines asks again.
  }
}

// Whether a process has ended that has not joined the call.
bool MessageExecutor::LacksProcess(const Arriving& arriving) const {
  const std::vector<uint32_t>& others = arriving.site->others();
  return std::any_of(others.begin(), others.end(), [&](uint32_t process) {
    if (!calls_.IsGone(process)) return false;
    bool has_joined = false;
    calls_.EachEarly(arriving.id, [&](const PeerArrival& peer) {
      has_joined = has_joined || (peer.process == process && !peer.arrival.waits);
    });
    return !has_joined;
  });
}

// Whether a rank of another process has come with another call, which no decision will be about.
bool MessageExecutor::Differs(const Arriving& arriving) const {
  if (!arriving.site->selector()) return false;
  bool differs = false;
  calls_.EachEarly(arriving.id, [&](const PeerArrival& peer) {
    differs = differs || !arriving.site->HasFingerprint(peer.arrival.fingerprint);
  });
  return differs;
}

// Whether the rank's call is decided, or fails: a process has ended, or the rank came before `overdue`.
bool MessageExecutor::MayStart(Arriving& arriving, Clock::time_point overdue) try {
  const bool fails = LacksProcess(arriving) || Differs(arriving) || !calls_.FindFailure(arriving.id).ok();
  return Select(arriving) || arriving.at <= overdue || fails;
} catch (const std::bad_alloc&) {
  return arriving.at <= overdue;  // until then the watch of deadlines asks again
}

// Has a rank that has waited join its call. Where memory runs out, the call's ranks end with an error.
void MessageExecutor::Start(Arriving& arriving) try {
  bool is_new = false;
  const std::shared_ptr<MessageCall> call = Join(arriving, is_new);
  if (is_new) transport_.load()->Expect();
  if (!call) return;
  Drive(call, call->Arrive(arriving.rank, std::move(arriving.buffers), std::move(arriving.done), arriving.at));
} catch (const std::bad_alloc&) {
  EndWithoutMemory(arriving);
}

// A decision about a call concerns the ranks that wait at its site, in this launch or the next one. A failure may
// concern those of other sites, which the watch of deadlines starts within a quarter of a second.
void MessageExecutor::StartDecided(const CallId& call) {
  std::vector<Arriving> ready;
  {
    std::lock_guard<std::mutex> lock(deciding_);
    const auto at = undecided_.find({call.communicator, call.site});
    if (at == undecided_.end() || !Reserve(ready, at->second.size())) return;
    TakeReady(at->second, Clock::time_point::min(), ready);
    if (at->second.empty()) undecided_.erase(at);
  }
  Start(ready);
}

void MessageExecutor::StartAllDecided(Clock::time_point overdue) {
  std::vector<Arriving> ready;
  {
    std::lock_guard<std::mutex> lock(deciding_);
    size_t waiting = 0;
    for (const auto& [site, ranks] : undecided_) waiting += ranks.size();
    if (!Reserve(ready, waiting)) return;
    for (auto at = undecided_.begin(); at != undecided_.end();) {
      TakeReady(at->second, overdue, ready);
      at = at->second.empty() ? undecided_.erase(at) : std::next(at);
    }
  }
  Start(ready);
}

// Takes the ranks that may start, with the mutex; `ready` has room for all.
void MessageExecutor::TakeReady(std::vector<Arriving>& ranks, Clock::time_point overdue, std::vector<Arriving>& ready) {
  const size_t before = ready.size();
  for (size_t i = 0; i < ranks.size();) {
    if (!MayStart(ranks[i], overdue)) {
      ++i;
      continue;
    }
    ready.push_back(std::move(ranks[i]));
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i));
  }
  starting_ += ready.size() - before;
}

// Graphs that have yet to be made are a worker's: this thread may be the transport's, for which all calls wait.
void MessageExecutor::Start(std::vector<Arriving>& ranks) {
  for (Arriving& rank : ranks) {
    if (rank.site->has_graphs()) {
      StartTaken(rank);
      continue;
    }
    std::shared_ptr<Arriving> kept;
    try {
      kept = std::make_shared<Arriving>(rank);
      threads_.workers().Submit({[this, kept, user = User(users_)] { StartTaken(*kept); }});
    } catch (const std::bad_alloc&) {
      StartTaken(rank);
    }
  }
}

void MessageExecutor::StartTaken(Arriving& rank) {
  const Finally end([this] {
    transport_.load()->EndExpecting();
    std::lock_guard<std::mutex> lock(deciding_);
    --starting_;
  });
  Start(rank);
}

bool MessageExecutor::waiting() const {
  {
    std::lock_guard<std::mutex> lock(deciding_);
    const auto has_ranks = [](const auto& each) { return !each.second.empty(); };
    if (starting_ > 0 || std::any_of(undecided_.begin(), undecided_.end(), has_ranks)) return true;
  }
  return calls_.open() > 0;
}

}  // namespace jaxcomm

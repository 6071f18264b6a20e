// A rank joins its call, the first one makes it.
#include <new>
#include <utility>
#include <vector>

#include "cc/base/errors.h"
#include "cc/executor/message_executor.h"

namespace jaxcomm {

// The call that the rank has come to, with what has come of it.
std::shared_ptr<MessageCall> MessageExecutor::Join(const std::shared_ptr<const MessageSite>& site, const CallId& id,
                                                   uint32_t rank, Clock::time_point now, const Status& refused,
                                                   bool& is_new) {
  std::shared_ptr<MessageCall> call;
  std::vector<PeerArrival> early;
  Status failure;
  std::vector<GoneProcess> gone;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto joined =
        calls_.Join(id, [&](int64_t number) { return std::make_shared<MessageCall>(site, id, number, rank, now); });
    call = joined.call;
    is_new = joined.is_new;
    if (is_new) {
      ++open_;
      early = early_.Take(id);
      failure = failures_.Find(id);
      for (const uint32_t process : site->others()) {
        if (const auto ended = gone_.find(process); ended != gone_.end()) gone.push_back(ended->second);
      }
    }
  }
  if (is_new) threads_.WatchDeadlines();
  Remember(site->ranks()[rank].device, call->id(), site->text(), now);
  if (!refused.ok()) Drive(call, call->Fail(refused, /*announce=*/true));
  for (const PeerArrival& peer : early) Drive(call, call->PeerArrived(peer.arrival, peer.process, peer.at));
  if (!failure.ok()) Drive(call, call->Fail(failure, /*announce=*/true));
  for (const GoneProcess& each : gone) Drive(call, call->PeerGone(each.process, each.why));
  if (call->site().fingerprint() != site->fingerprint()) {
    Drive(call, call->Fail(call->Differs(rank, site->text()), /*announce=*/true));
  }
  return call;
}

// None: the process has no memory for the call, which its other ranks and this one end with.
std::shared_ptr<MessageCall> MessageExecutor::JoinOrRefuse(const std::shared_ptr<const MessageSite>& site,
                                                           const CallId& id, uint32_t rank, Clock::time_point now,
                                                           const Status& refused, bool& is_new, const Done& done) {
  try {
    return Join(site, id, rank, now, refused, is_new);
  } catch (const std::bad_alloc&) {
    const Status why = NoMemory{site->NameCall(), site->NameOf(rank)}.status();
    Refuse(*site, id, why);
    done(why);
    return nullptr;
  }
}

}  // namespace jaxcomm

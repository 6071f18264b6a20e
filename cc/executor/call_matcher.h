// Matches the calls of all processes. It knows the calls that ranks of this process have joined, that only ranks of
// other processes have joined, that are over, and that have failed; and the processes that have ended.
//
//   const auto [id, failure] = calls.Name(*site, run, rank);                    // a rank of this process
//   CallMatcher::Joined joined = calls.Join(site, id, rank, Clock::now());
//   if (auto call = calls.FindOrKeep({process, arrival, Clock::now()})) …       // a rank of another process
//
// Notices of a call that has not begun here are kept for it. When a call fails, in any process, the
// calls of its launch that begin later fail at once: a relaunch after an error rejoins the others at the same call.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/base/error_texts.h"
#include "cc/base/status.h"
#include "cc/executor/call_names.h"
#include "cc/executor/call_table.h"
#include "cc/executor/early_arrivals.h"
#include "cc/executor/failed_calls.h"
#include "cc/executor/message_call.h"
#include "cc/executor/message_site.h"
#include "cc/executor/notices.h"
#include "cc/executor/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A process that sends nothing any more.
struct GoneProcess {
  uint32_t process;
  Status why;
  bool has_left;  // of its own accord
  Clock::time_point since;
};

class CallMatcher {
 public:
  struct Named {
    CallId id;
    Status failure;  // of a call of the same launch on another communicator
  };
  // The next call of a rank of this process. `run`: XLA's number of the launch.
  Named Name(const MessageSite& site, int64_t run, uint32_t rank);

  struct Joined {
    std::shared_ptr<MessageCall> call;
    bool is_new;
    // Of a new call: the ranks that joined before, why it has failed already, and its processes that have ended.
    std::vector<PeerArrival> early;
    Status failure;
    std::vector<GoneProcess> gone;
  };
  // A rank of this process joins the call; the first one makes it.
  Joined Join(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Clock::time_point now);

  // Whether nothing is known of a call that has yet to begin: no arrival, no failure, and no process that has ended.
  bool IsUnknown(const MessageSite& site, const CallId& id) const;
  // All ranks of a group have joined the call and left it.
  void AddEnded(const MessageSite& site, const CallId& id, const std::vector<uint32_t>& ranks, Clock::time_point now);

  // The call that a rank of another process has joined; null: it is over, or has not begun here, and the arrival is
  // kept for it.
  std::shared_ptr<MessageCall> FindOrKeep(PeerArrival arrival);
  // Visits the arrivals that are kept for a call, with the mutex.
  template <typename Visit>
  void EachEarly(const CallId& id, Visit visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    early_.Each(id, visit);
  }

  // The decision of a process about a call, which may have yet to begin here. The first one stays.
  void AddDecision(uint32_t process, const Decided& decided);
  std::optional<ScheduleSelector::Decision> FindDecision(uint32_t process, const CallId& id) const;
  std::shared_ptr<MessageCall> Find(const CallId& id) const;

  // A call that is over, in which ranks of other processes may still expect one of this process, as its groups change.
  struct Finished {
    std::shared_ptr<const MessageSite> site;
    uint32_t first;
    CallName name;
  };
  std::optional<Finished> FindFinished(const CallId& id) const;

  std::vector<std::shared_ptr<MessageCall>> All() const;
  // The number of calls that are neither over nor have ended with an error.
  size_t open() const;

  // The call is over; whether it was open.
  bool Close(const MessageCall& call);
  // The call has ended with its error, which ranks that arrive late get.
  void KeepFailed(const MessageCall& call);
  // The call has failed elsewhere, or for a rank that cannot join it; null: it has not begun here, and will fail when
  // it does. `step`: a hash of the step whose call it is.
  std::shared_ptr<MessageCall> AddFailure(const CallId& id, const Status& why, uint64_t step);
  // Ok: neither the call nor another of its launch has failed.
  Status FindFailure(const CallId& id) const;
  // The error of a call that `delay` keeps from its end; it says where the missing ranks are instead.
  Status DeadlineError(const MessageCall& call, const MessageCall::Delay& delay, Clock::time_point now) const;

  void AddGone(const GoneProcess& gone);
  // Another process has noticed it first.
  void AddReported(const GoneProcess& gone);
  bool IsGone(uint32_t process) const;
  // The process of the site that the error names as gone.
  std::optional<Failure::Gone> GoneOf(const MessageSite& site, const Status& why) const;
  // In the order of their numbers.
  std::vector<GoneProcess> gone() const;

  // Frees what the site's failed calls keep for ranks that arrive late.
  void Forget(const MessageSite& site);
  // No process launches anything on the communicator any more.
  void ForgetCommunicator(uint64_t communicator);
  // Forgets all, for another job.
  void Clear();

 private:
  static constexpr size_t kFinishedKept = 1024;
  static constexpr size_t kDevices = 1 << 16;
  static constexpr size_t kDecisions = 1024;
  // The call that a device has joined last, for errors.
  struct LastCall {
    CallId id;
    std::string text;
    Clock::time_point at;
  };

  auto GivenUp(const MessageSite& site) const;

  mutable std::mutex mutex_;
  CallNames names_;
  CallTable<CallId, MessageCall> calls_;
  size_t open_ = 0;
  EarlyArrivals early_;
  BoundedMap<CallId, Finished> finished_{kFinishedKept};
  BoundedMap<std::pair<uint32_t, CallId>, ScheduleSelector::Decision> decisions_{kDecisions};  // by process
  FailedCalls failures_;
  BoundedMap<uint32_t, LastCall> last_calls_{kDevices};
  std::map<uint32_t, GoneProcess> gone_, reported_gone_;  // by process
};

}  // namespace jaxcomm

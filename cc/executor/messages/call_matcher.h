// Matches the calls of all processes. Knows the calls that ranks of this process have joined, the calls that only other
// processes have joined, the calls that are over or have failed, and the processes that have ended.
//
//   const auto [id, failure] = calls.Name(*site, run, rank);                    // a rank of this process
//   CallMatcher::Joined joined = calls.Join(site, id, rank, Clock::now(), Status());
//   if (auto call = calls.FindOrKeep({process, arrival, Clock::now()})) …       // a rank of another process
//
// Keeps other processes' notices about calls that have not begun here. When a call fails in one process, all later
// calls of the same launch fail at once. A relaunch after an error therefore rejoins the other processes at the same
// call. Thread-safe.
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
#include "cc/executor/calls/call_table.h"
#include "cc/executor/messages/call_names.h"
#include "cc/executor/messages/early_arrivals.h"
#include "cc/executor/messages/failed_calls.h"
#include "cc/executor/messages/gone_process.h"
#include "cc/executor/messages/message_call.h"
#include "cc/executor/messages/notices.h"
#include "cc/executor/sites/message_site.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class CallMatcher {
 public:
  struct Named {
    CallId id;
    Status failure;  // not ok: a call of the same launch on another communicator has failed
  };
  // Names the next call of a rank of this process. `run`: XLA's number of the launch.
  Named Name(const MessageSite& site, int64_t run, uint32_t rank);

  struct Joined {
    std::shared_ptr<MessageCall> call;
    bool is_new;
    // Set only for a new call: the arrivals of other processes' ranks, the error if the call has failed already, and
    // the call's processes that have ended.
    std::vector<PeerArrival> early;
    Status failure;
    std::vector<GoneProcess> gone;
  };
  // Makes a rank of this process join the call. The first rank that joins creates the call. `refused`: if this is an
  // error, the call will fail with the error.
  Joined Join(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Clock::time_point now,
              const Status& refused);

  // Whether this process knows nothing of the call: the call has not begun here, no rank has announced its arrival, no
  // failure is known, and all processes of the call are running.
  bool IsUnknown(const MessageSite& site, const CallId& id) const;
  // Records that these ranks have completed the call without messages. Returns the call's number in this process.
  int64_t AddEnded(const MessageSite& site, const CallId& id, const std::vector<uint32_t>& ranks,
                   Clock::time_point now);
  // Records that `rank` has completed a transfer whose receiver may not have arrived yet. Returns the arrivals that are
  // kept for the call: a receiver announces its arrival only if its call differs.
  std::vector<PeerArrival> AddSent(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                                   Clock::time_point now);

  // Returns the call at which another process's rank has arrived. Returns null if the call is over or has not begun
  // here. If the call has not begun, keeps the arrival until the call begins.
  std::shared_ptr<MessageCall> FindOrKeep(PeerArrival arrival);
  // Visits the arrivals that are kept for a call. Holds the mutex during the visits.
  template <typename Visit>
  void EachEarly(const CallId& id, Visit visit) const {
    std::lock_guard<std::mutex> lock(mutex_);
    early_.Each(id, visit);
  }

  std::shared_ptr<MessageCall> Find(const CallId& id) const;

  // A call that is over in this process, although ranks of other processes may still arrive: a transfer that has been
  // sent, or a call at a site whose groups change from call to call.
  struct Finished {
    std::shared_ptr<const MessageSite> site;
    uint32_t first;
    int64_t number;
  };
  std::optional<Finished> FindFinished(const CallId& id) const;

  std::vector<std::shared_ptr<MessageCall>> All() const;
  // The number of calls that have neither completed nor failed.
  size_t open() const;

  // Records that the call is over. Returns whether the call was open.
  bool Close(const MessageCall& call);
  // Records a failed call, so that ranks that arrive later get its error.
  void KeepFailed(const MessageCall& call);
  // Records a call that has failed in another process, or that a rank of this process cannot join. Returns the call, or
  // null if the call has not begun here. A call that has not begun fails as soon as it begins. `step`: a hash of the
  // step that has the call.
  std::shared_ptr<MessageCall> AddFailure(const CallId& id, const Status& why, uint64_t step);
  // Returns the failure of the call or, if the call has not failed, of another call of its launch. Returns ok if no
  // call of the launch has failed.
  Status FindFailure(const CallId& id) const;
  // The error of a call that exceeds its deadline because of `delay`. The error says where the missing ranks are.
  Status DeadlineError(const MessageCall& call, const MessageCall::Delay& delay, Clock::time_point now) const;

  // Returns a JSON list with one entry per device: the latest call that the device has joined, as far as this process
  // knows. Times are microseconds of the steady clock.
  std::string LastCallsJson() const;

  // Records that a process has ended. Returns the record; its `cause` is set if the process left after it had reported
  // another process's end.
  GoneProcess AddGone(GoneProcess gone);
  // Records that the process `reporter` has reported the end of another process. IsGone ignores such reports.
  void AddReported(uint32_t reporter, const GoneProcess& gone);
  bool IsGone(uint32_t process) const;
  // Returns the process whose end caused the error. Returns nullopt if the error has another cause, or if that process
  // shares no group with this process.
  std::optional<Failure::Gone> GoneOf(const MessageSite& site, const Status& why) const;
  // The processes that have ended, in the order of their numbers.
  std::vector<GoneProcess> gone() const;

  // Drops the site's failed calls, which were kept so that late ranks get the error.
  void Forget(const MessageSite& site);
  // Drops a communicator that no process uses any more.
  void ForgetCommunicator(uint64_t communicator);
  // Forgets everything. Called before another job begins.
  void Clear();

 private:
  static constexpr size_t kFinishedKept = 1024;
  static constexpr size_t kSentKept = 256;  // sends are frequent, and must not displace the other finished calls
  static constexpr size_t kDevices = 1 << 16;
  // The latest call that a device has joined.
  struct LastCall {
    CallId id;
    uint32_t process;
    std::string text;
    Clock::time_point at;
  };

  auto GivenUp(const MessageSite& site) const;

  mutable std::mutex mutex_;
  CallNames names_;
  CallTable<CallId, MessageCall> calls_;
  size_t open_ = 0;
  EarlyArrivals early_;
  BoundedMap<CallId, Finished> finished_{kFinishedKept}, sent_{kSentKept};
  FailedCalls failures_;
  BoundedMap<uint32_t, LastCall> last_calls_{kDevices};
  std::map<uint32_t, GoneProcess> gone_;      // by process
  std::map<uint32_t, GoneProcess> reported_;  // by reporting process: the first ended process that it reported
};

}  // namespace jaxcomm

// Runs collectives of the ranks of one process as their ops become possible.
//
//   Executor executor(/*threads=*/2);
//   executor.Arrive({run_id, group}, site, rank, buffers, [](const Status& status) { ... });   // returns at once
//
// Arrive never blocks: a rank's arrival makes ops runnable, on a small pool of threads or, when the whole call is tiny,
// right there. Every callback runs exactly once: in Arrive for the arriving rank if its call is over by then, otherwise
// on a thread that no other callback shares, because it may go on to run the rest of a device's program and block
// there. A call that is not complete at the deadline fails on every rank that waits, and on those that come later.
//
// Threads are made when the first rank comes. Where the system has none to give, that rank's callback gets an error.
// Later ones wait for a thread, at most until the deadline: on a thread of somebody else's, the program that a callback
// goes on with might wait for the very program that it keeps from running. The error that they get then ends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "cc/executor/across.h"
#include "cc/executor/call.h"
#include "cc/executor/message_site.h"
#include "cc/executor/stats.h"
#include "cc/executor/thread_cache.h"
#include "cc/executor/timer.h"
#include "cc/executor/worker_pool.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Executor {
 public:
  // Ranks join one call when run, call site and group are the same.
  struct Key {
    int64_t run;
    int64_t group;
    Names names = nullptr;  // alike for all ranks of the group
  };

  explicit Executor(unsigned num_threads);

  void Arrive(Key key, const std::shared_ptr<LocalSite>& site, uint32_t rank, Buffers buffers, Done done);

  // A rank of this process comes to a collective between processes, over the transport that is connected. Of one launch
  // all processes give their own run; ranks count over all groups of the site. `refused`: the error, if it is one, that
  // the rank brings, which all ranks of the call then end with.
  void ArriveAcross(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers,
                    Done done, const Status& refused = Status());
  // A rank of this process cannot come to the collective: the other ranks of the call end with this error.
  void RefuseAcross(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) {
    across_.Refuse(site, run, rank, why);
  }
  bool awaits_processes() const { return across_.waiting(); }
  void ArriveAcross(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
                    Done done, const Status& refused = Status(), bool helps = false);
  // See AcrossProcesses.
  bool HelpAcross(const std::function<bool()>& over) { return across_.Help(over); }
  std::shared_ptr<StepChoice> ChoiceOf(const MessageSite& site, const MessageSite& other, StepChoice::Rule rule) {
    return across_.ChoiceOf(site, other, rule);
  }
  uint32_t LaunchOf(const MessageSite& site, int64_t run) { return across_.LaunchOf(site, run); }
  // Before the first ArriveAcross. The transport, whose events go to events(), is the caller's. It outlives this, or
  // stays until Disconnect, but must have run its last callback by then.
  void Connect(Transport* transport, bool yields = false) { across_.Connect(transport, yields); }
  Status Disconnect(Clock::time_point limit) { return across_.Disconnect(limit); }
  Transport::Events& events() { return across_; }
  std::vector<AcrossProcesses::GoneProcess> gone() const { return across_.gone(); }

  // Ends the call of this key with an error, for those that wait in it and for those that come later: `coming` ranks
  // together, fewer than the program has, at least one. No other may come.
  void Abort(const Key& key, const std::shared_ptr<LocalSite>& site, Status why, uint32_t coming);

  // Calls back so much later, likewise.
  void Delay(Clock::duration delay, Done done);

  // The call site is gone: what failed calls keep for ranks that come late may go too.
  void Forget(const LocalSite* site);
  void Forget(const MessageSite* site) { across_.Forget(site); }
  void ForgetCommunicator(uint64_t communicator) { across_.ForgetCommunicator(communicator); }

  void SetDeadline(double seconds) { deadline_.store(seconds); }
  Stats& stats() { return stats_; }
  // How many calls somebody has yet to join.
  size_t open_calls() const;

 private:
  using FullKey = std::tuple<int64_t, const LocalSite*, int64_t>;
  struct CallInFlight {
    std::shared_ptr<Call> call;
    uint32_t coming = 0;  // ranks that have yet to join
  };
  using CallsInFlight = std::map<FullKey, CallInFlight>;

  bool Start();
  CallsInFlight::iterator Find(const Key& key, const std::shared_ptr<LocalSite>& site);
  std::shared_ptr<Call> Join(const Key& key, const std::shared_ptr<LocalSite>& site);
  void Advance(const std::shared_ptr<Call>& call, Progress progress);
  void RunHere(const std::shared_ptr<Call>& call, Progress& progress);
  void CallBack(const std::string& who, Done done, Status status, Clock::time_point since);
  void WatchAcross();
  void ArmWatch();
  void Watch();

  const unsigned num_threads_;
  std::atomic<double> deadline_{60.0};
  Stats stats_;
  mutable std::mutex mutex_;
  CallsInFlight in_flight_;     // calls that somebody has yet to join
  std::deque<FullKey> failed_;  // those of them that are overdue, from the oldest; some are gone
  int64_t number_ = 0;
  bool started_ = false;
  bool watching_ = false;
  AcrossProcesses across_;
  // Destroyed first, in this order from the last: no thread may outlive what it uses. Workers use the timer, for
  // callbacks that lack a thread, and the timer starts the threads.
  ThreadCache threads_;
  Timer timer_;
  WorkerPool pool_;
};

}  // namespace jaxcomm

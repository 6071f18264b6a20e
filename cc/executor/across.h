// Runs collectives between processes: names calls alike in all of them, starts what their ranks' messages make
// possible, and says who keeps a call from its end.
//
//   AcrossProcesses across(pool, call_back);
//   across.Connect(transport, /*yields=*/false);             // whose Events this is
//   across.Arrive(site, run, rank, buffers, done);           // returns at once
//   across.Watch(Clock::now(), deadline);                    // ends what is overdue; now and then
//
// Thread-safe; holds no lock when it calls the transport, a callback or the pool. What comes of a call that has not
// begun here is kept for it, as much as there is room for. When a call fails, in any process, the calls of its launch
// that begin later fail at once: a relaunch after an error rejoins the others at the same call.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/bounded_map.h"
#include "cc/executor/call_names.h"
#include "cc/executor/early_arrivals.h"
#include "cc/executor/failed_calls.h"
#include "cc/executor/last_calls.h"
#include "cc/executor/message_call.h"
#include "cc/executor/message_site.h"
#include "cc/executor/notices.h"
#include "cc/executor/step_choice.h"
#include "cc/executor/timer.h"
#include "cc/executor/users.h"
#include "cc/executor/worker_pool.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class AcrossProcesses : public Transport::Events {
 public:
  // Runs a completion on a thread that may block.
  using CallBack = std::function<void(const std::string& who, Completion)>;

  AcrossProcesses(WorkerPool& pool, Timer& timer, CallBack call_back)
      : pool_(pool), timer_(timer), call_back_(std::move(call_back)) {}

  // Before the first Arrive; the transport is the caller's. It outlives this or stays until Disconnect, but has run its
  // last callback by then.
  void Connect(Transport* transport, bool yields) {
    yields_ = yields;
    closing_ = false;
    unexpected_ = 0;
    transport_.store(transport);
  }
  // Once the transport has run its last callback: waits until no call uses it, and forgets the job's calls, their names
  // and the processes that are gone. An error: a call is still open at the limit.
  Status Disconnect(Clock::time_point limit);

  // `refused`: an error that the rank brings, which all ranks of the call end with.
  void Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers, Done done,
              const Status& refused = Status());
  // The same where whoever calls names the execution, alike in all processes.
  // `helps`: the thread calls Help next, and the others may learn of the arrival no sooner.
  void Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
              Done done, const Status& refused = Status(), bool helps = false);
  // Takes what comes, and adds it, on this thread, which waits anyhow: until `over`, for a short time at most. False:
  // another thread takes it.
  bool Help(const std::function<bool()>& over);

  // The rank cannot come: the other processes' ranks of the call end with this error, this rank is not called back.
  // Where the processes are not connected, it is no launch: the next job counts from its own beginning.
  void Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why);
  void Refuse(const MessageSite& site, const CallId& id, const Status& why);

  // What chooses between the lists of two sites of the same calls: one for all of their executables, which processes
  // compile and drop at different times.
  std::shared_ptr<StepChoice> ChoiceOf(const MessageSite& site, const MessageSite& other, StepChoice::Rule rule);

  // The number of launches that called on the site's communicator before this one.
  uint32_t LaunchOf(const MessageSite& site, int64_t run);

  void OnNotice(uint32_t process, std::string_view notice) override;
  void OnPeerGone(uint32_t process, const Status& why) override { Lose({process, why, false, Clock::now()}); }
  void OnPeerLeft(uint32_t process, const Status& why) override { Lose({process, why, true, Clock::now()}); }

  // A process from which nothing comes any more.
  struct GoneProcess {
    uint32_t process;
    Status why;
    bool has_left;  // of its own accord
    Clock::time_point since;
  };
  // In the order of their numbers.
  std::vector<GoneProcess> gone() const;

  // Ends the calls that are overdue.
  void Watch(Clock::time_point now, double deadline);
  bool waiting() const;

  // The call site is gone: what failed calls keep for ranks that come late may go too.
  void Forget(const MessageSite* site);
  // Nothing is launched on the communicator any more, in any process.
  void ForgetCommunicator(uint64_t communicator);

 private:
  // A call that is over here, of ranks whose groups change: others may think that they have a rank in it.
  static constexpr size_t kFinishedKept = 1024;
  struct Finished {
    std::shared_ptr<const MessageSite> site;
    uint32_t first;
    std::string name;
  };
  struct Work {
    std::shared_ptr<MessageCall> call;
    MessageSteps steps;
  };
  // A rank that has come to a call of which nobody has said yet which lists it runs.
  struct Undecided {
    std::shared_ptr<const MessageSite> site;
    CallId id;
    uint32_t rank;
    Buffers buffers;
    Done done;
    Clock::time_point at;
  };
  struct Driver;

  bool is_connected() const { return !closing_ && transport_.load() != nullptr; }
  bool IsConnected(const MessageSite& site, const Done& done) const;
  void Begin(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
             Done done, StepChoice::Said said, const Status& refused, Clock::time_point now);
  std::shared_ptr<const MessageSite> Chosen(const std::shared_ptr<const MessageSite>& site, const CallId& id,
                                            uint32_t rank, StepChoice::Said& said);
  void AwaitDecision(const MessageSite& site, const CallId& id, uint32_t rank);
  void StartDecided(Clock::time_point overdue);
  bool LacksSomebody(const Undecided& rank) const;
  std::shared_ptr<MessageCall> Join(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                                    Clock::time_point now, const Status& refused, bool& is_new);
  std::shared_ptr<MessageCall> JoinOrRefuse(const std::shared_ptr<const MessageSite>& site, const CallId& id,
                                            uint32_t rank, Clock::time_point now, const Status& refused, bool& is_new,
                                            const Done& done);

  void Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps);
  void Run(Driver& driver);
  bool MayHelp(const MessageCall& call) const;
  bool Help(Driver& driver, const std::function<bool()>& over);
  bool StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps);
  void Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Driver& driver);
  bool Close(const std::shared_ptr<MessageCall>& call);
  void Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  void Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  MessageStep OfGone(const MessageCall& call, const MessageStep& step) const;
  void SendNotice(const std::vector<uint32_t>& processes, const std::string& notice);
  void TellDifference(const Finished& call, uint32_t process, const Arrival& arrival);
  void TellFailure(const MessageSite& site, const CallId& id, const Status& why);
  void Stop(const std::shared_ptr<MessageCall>& call);

  void Lose(const GoneProcess& gone);
  std::optional<Failure::Gone> GoneOf(const MessageSite& site, const Status& why) const;
  std::shared_ptr<MessageCall> FindOrKeep(PeerArrival arrival);
  std::shared_ptr<MessageCall> FindOrFail(const Failure& failure);
  std::optional<Finished> FindFinished(const CallId& id) const;
  void Remember(uint32_t device, const CallId& id, const std::string& text, Clock::time_point now);
  auto GivenUp(const MessageSite& site) const;

  WorkerPool& pool_;
  Timer& timer_;
  const CallBack call_back_;
  std::atomic<Transport*> transport_{nullptr};
  bool yields_ = false;  // who helps; set before the transport
  std::atomic<bool> closing_{false};
  std::atomic<int64_t> unexpected_{0};  // calls for which a thread that is about to help has yet to expect messages
  std::atomic<int64_t> users_{0};       // of the transport, beside its own threads

  mutable std::mutex mutex_;
  CallNames names_;
  std::map<CallId, std::shared_ptr<MessageCall>> calls_;
  size_t open_ = 0;            // those of them that have not failed
  std::deque<CallId> failed_;  // those of them that failed, from the oldest; some are gone
  BoundedMap<CallId, Finished> finished_{kFinishedKept};
  EarlyArrivals early_;
  std::vector<Undecided> undecided_;
  size_t starting_ = 0;  // those that were undecided
  std::map<std::pair<uint64_t, std::string>, std::shared_ptr<StepChoice>>
      choices_;  // by communicator and what is alike
  FailedCalls failures_;
  LastCalls last_calls_;
  std::map<uint32_t, GoneProcess> gone_;  // by process
  // Those that another process has found first, until this one does.
  std::map<uint32_t, GoneProcess> reported_gone_;
  int64_t number_ = 0;
};

}  // namespace jaxcomm

// Runs collectives between processes: starts what the ranks' messages make possible, and ends what cannot go on.
//
//   MessageExecutor executor(&threads);
//   executor.Connect(transport, /*yields=*/false);           // whose Events this is
//   executor.Arrive(site, run, rank, buffers, done);         // returns at once
//   executor.FailOverdue(Clock::now(), deadline);            // now and then
//
// Thread-safe; holds no lock when it calls the transport, a callback or the workers. message_executor.cc has the ranks
// join their calls, and the files after it select the schedules of calls, have ranks wait for them, drive the calls,
// fail them, and exchange the operands of small ones.
#pragma once

#include <atomic>
#include <cstdint>
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
#include "cc/executor/call_matcher.h"
#include "cc/executor/call_threads.h"
#include "cc/executor/lost_rails.h"
#include "cc/executor/plan_selector.h"
#include "cc/executor/schedule_selector.h"
#include "cc/executor/users.h"

namespace jaxcomm {

class MessageExecutor : public Transport::Events {
 public:
  explicit MessageExecutor(CallThreads* threads) : threads_(*threads) {}

  // Before the first Arrive; the transport is the caller's. It outlives this or stays until Disconnect, but has run its
  // last callback by then.
  void Connect(Transport* transport, bool yields = false) {
    yields_ = yields;
    closing_ = false;
    unexpected_ = 0;
    transport_.store(transport);
  }
  // Once the transport has run its last callback: waits until no call uses it, and forgets the job's calls, their names
  // and the processes that have ended. An error: a call is still open at the limit.
  Status Disconnect(Clock::time_point limit);

  // `run`: XLA's number of the launch. `refused`: an error that the rank brings, with which all ranks of the call end.
  void Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers, Done done,
              const Status& refused = Status());
  // The same where the caller names the execution, alike in all processes.
  // `helps`: the thread calls Help next, and the others may receive the arrival no sooner. False: it need not, as the
  // call sends nothing.
  bool Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
              Done done, const Status& refused = Status(), bool helps = false);
  // Receives messages and adds them on this thread, which waits anyhow: until `over`, for a short time at most. False:
  // another thread receives them.
  bool Help(const std::function<bool()>& over);

  // The rank cannot join its call: the other processes' ranks of the call end with this error, this rank is not called
  // back. Where the processes are not connected, it is no launch: the next job counts from its own beginning.
  void Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why);
  void Refuse(const MessageSite& site, const CallId& id, const Status& why);

  // The selector from the lists of sites of the same calls: one for all of their executables, which processes compile
  // and drop at different times. `step` distinguishes their calls from others on the same devices. Of `lost_rails` the
  // ranks are those of the site.
  std::shared_ptr<ScheduleSelector> SelectorOf(const MessageSite& site,
                                               const std::vector<std::shared_ptr<MessageSite>>& others,
                                               ScheduleSelector::Rule rule, uint64_t step,
                                               std::vector<ScheduleSelector::LostRail> lost_rails = {});

  // Selects the plan of calls that follow the plan of the run.
  PlanSelector& plans() { return plans_; }

  void OnNotice(uint32_t process, std::string_view notice) override;
  void OnPeerGone(uint32_t process, const Status& why) override { Lose({process, why, false, Clock::now()}); }
  void OnPeerLeft(uint32_t process, const Status& why) override { Lose({process, why, true, Clock::now()}); }
  void OnRail(uint32_t process, uint32_t rail, bool is_open) override { lost_rails_.Change(process, rail, is_open); }

  std::vector<GoneProcess> gone() const { return calls_.gone(); }

  // Fails the calls that have waited for `deadline` seconds; returns whether others still wait.
  bool FailOverdue(Clock::time_point now, double deadline);
  bool waiting() const;

  // As those of CallMatcher.
  void Forget(const MessageSite* site) { calls_.Forget(*site); }
  void ForgetCommunicator(uint64_t communicator);

 private:
  struct Work {
    std::shared_ptr<MessageCall> call;
    MessageSteps steps;
  };
  // A rank of this process on its way into a call.
  struct Arriving {
    std::shared_ptr<const MessageSite> site;
    CallId id;
    uint32_t rank;
    Buffers buffers;
    Done done;
    Clock::time_point at;
    Status refused;                                                     // not ok: the call fails on all ranks
    std::optional<ScheduleSelector::Decision> decision = std::nullopt;  // of the rank that decides, to be announced
  };
  struct Driver;

  // Joining.
  bool is_connected() const { return !closing_ && transport_.load() != nullptr; }
  Status Check(const MessageSite& site) const;
  void Begin(Arriving arriving);
  std::shared_ptr<MessageCall> Join(const Arriving& arriving, bool& is_new);
  void OnArrival(uint32_t process, const Arrival& arrival);
  std::shared_ptr<MessageCall> KeepArrival(PeerArrival peer);
  bool Exchange(const Arriving& arriving, bool may_wait);

  // Selecting.
  void KeepDecided(const std::shared_ptr<const MessageSite>& site);
  bool Select(Arriving& arriving);
  void Learn(const MessageSite& site, const CallId& id) const;
  void Announce(const MessageSite& site, const CallId& id, const ScheduleSelector::Decision& decision);
  void OnDecided(uint32_t process, const Decided& decided);
  void OnWaiting(uint32_t process, const Arrival& arrival);
  void DecideByTurns(const std::shared_ptr<const MessageSite>& site, const CallId& id);

  // Waiting.
  void Wait(Arriving arriving);
  bool Differs(const Arriving& arriving) const;
  void StartDecided(const CallId& call);
  void StartAllDecided(Clock::time_point overdue = Clock::time_point::min());
  void TakeReady(std::vector<Arriving>& ranks, Clock::time_point overdue, std::vector<Arriving>& ready);
  bool LacksProcess(const Arriving& arriving) const;
  bool MayStart(Arriving& arriving, Clock::time_point overdue);
  void Start(std::vector<Arriving>& ranks);
  void StartTaken(Arriving& arriving);
  void Start(Arriving& arriving);

  // Driving.
  void Drive(const std::shared_ptr<MessageCall>& call, MessageSteps steps);
  void Run(Driver& driver);
  bool MayHelp(const MessageCall& call) const;
  bool Help(Driver& driver, const std::function<bool()>& over);
  bool StartTasks(const std::shared_ptr<MessageCall>& call, const MessageSteps& steps);
  void Finish(const std::shared_ptr<MessageCall>& call, MessageSteps& steps, Driver& driver);
  void CallBack(const MessageCall& call, Completion completion);
  void Post(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  void Send(const std::shared_ptr<MessageCall>& call, const MessageStep& step);
  MessageStep OfGone(const MessageCall& call, const MessageStep& step) const;
  void SendNotice(const std::vector<uint32_t>& processes, const std::string& notice);

  // Failing.
  void OnFailure(uint32_t process, const Failure& failure);
  void End(const Arriving& arriving, const Status& why);
  void FailWithoutMemory(const std::shared_ptr<MessageCall>& call, uint32_t rank);
  void EndWithoutMemory(const Arriving& arriving);
  void SendFailure(const MessageSite& site, const CallId& id, const Status& why);
  void SendDifference(const CallMatcher::Finished& call, uint32_t process, const Arrival& arrival);
  void Lose(const GoneProcess& gone);
  void Stop(const std::shared_ptr<MessageCall>& call);

  CallThreads& threads_;
  std::atomic<Transport*> transport_{nullptr};
  bool yields_ = false;  // while helping; set before the transport
  std::atomic<bool> closing_{false};
  std::atomic<int64_t> unexpected_{0};  // calls for which a thread that is about to help has yet to expect messages
  std::atomic<int64_t> users_{0};       // of the transport, beside its own threads
  CallMatcher calls_;
  LostRails lost_rails_;

  mutable std::mutex deciding_;
  std::map<std::pair<uint64_t, uint32_t>, std::vector<Arriving>> undecided_;  // by communicator and site
  size_t starting_ = 0;                                                       // those that were undecided
  // By communicator and the text of what calls that choose alike have in common.
  static constexpr size_t kSelectors = 1024;  // of a communicator; and of sites
  std::map<uint64_t, BoundedMap<std::string, std::shared_ptr<ScheduleSelector>>> selectors_;
  // By communicator and fingerprint: the sites whose calls this process decides, also before its own ranks come.
  BoundedMap<std::pair<uint64_t, uint64_t>, std::weak_ptr<const MessageSite>> decided_{kSelectors};
  PlanSelector plans_{[this] {
    const User user(users_);
    StartAllDecided();
  }};
};

}  // namespace jaxcomm

// Runs collectives between processes: starts tasks as messages arrive, and fails calls that cannot continue.
//
//   MessageExecutor executor(&threads);
//   executor.Connect(transport, /*yields=*/false);           // the executor is the transport's Events
//   executor.Arrive(site, run, rank, buffers, done);         // returns at once
//   executor.FailOverdue(Clock::now(), deadline);            // called regularly
//
// Thread-safe. Holds no lock while it calls the transport, a callback or the workers.
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
#include "cc/executor/decide/decider.h"
#include "cc/executor/messages/arriving_rank.h"
#include "cc/executor/messages/call_matcher.h"
#include "cc/executor/messages/message_driver.h"
#include "cc/executor/messages/notices.h"
#include "cc/executor/messages/operand_transfer.h"
#include "cc/executor/messages/waiting_ranks.h"
#include "cc/executor/sites/message_calls.h"
#include "cc/executor/threads/call_threads.h"
#include "cc/executor/threads/users.h"

namespace jaxcomm {

class MessageExecutor : public Transport::Events, public MessageCalls {
 public:
  explicit MessageExecutor(CallThreads* threads) : threads_(*threads) {}

  // Called before the first Arrive. The caller owns the transport, and keeps the transport until Disconnect has
  // returned or this object is destroyed. Disconnect and the destructor must run after the transport's last callback.
  void Connect(Transport* transport, bool yields = false) {
    closing_ = false;
    driver_.Connect(transport, yields);
  }
  // Called after the transport's last callback. Waits until no call uses the transport, then forgets the job's calls,
  // their names and the processes that have ended. Fails if a call is still open at the limit.
  Status Disconnect(Clock::time_point limit);

  void Arrive(const std::shared_ptr<const MessageSite>& site, int64_t run, uint32_t rank, Buffers buffers, Done done,
              const Status& refused = Status()) override;
  // Like the Arrive above, but the caller passes the call's `id`, which must be the same in all processes, and the time
  // `at` at which the rank arrived. With
  // `helps`, the caller must call Help next, because the arrival may be sent only in Help. Returns false if Help is not
  // needed, because the call follows the plan of the run and has completed by an exchange of operands.
  bool Arrive(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank, Buffers buffers,
              Done done, const Status& refused = Status(), bool helps = false, Clock::time_point at = Clock::now());

  // A rank that has joined a transfer without messages. EndTransfer completes the rank's part.
  struct JoinedTransfer {
    JoinedTransfer(ArrivingRank rank, const User& user) : arriving(std::move(rank)), user(user) {}

    ArrivingRank arriving;
    const User user;  // destroyed after the transfer
    OperandTransfer transfer{arriving};
  };
  // Makes a rank join a transfer if the transfer's ranks need no messages. Does not wait. Returns null if they need
  // messages; the caller must then call Arrive.
  std::unique_ptr<JoinedTransfer> JoinTransfer(const std::shared_ptr<const MessageSite>& site, const CallId& id,
                                               uint32_t rank, const Buffers& buffers, const Done& done,
                                               Clock::time_point at);
  // Ends this rank's part, and waits for the other rank if necessary. Returns false if the part is complete. Otherwise
  // makes the rank join the call with messages and returns true; the caller must then call Help.
  bool EndTransfer(std::unique_ptr<JoinedTransfer> rank);
  // Runs a rank's call without messages. Returns false if the ranks cannot exchange operands, if they do not arrive
  // within OperandExchange::kLongestWait, or if the call follows the plan of the run. In that case a result that does
  // not share memory with its operand is undefined, and the caller must call Arrive or, for an all-to-all, move the
  // operands in other calls.
  bool ExchangeOperands(const std::shared_ptr<const MessageSite>& site, const CallId& id, uint32_t rank,
                        const Buffers& buffers, Clock::time_point at);
  // Receives messages and runs their additions on this thread, which would otherwise only wait. Returns when `over`
  // returns true or after a short time. Returns false if another thread receives the messages.
  bool Help(const std::function<bool()>& over);

  void Refuse(const MessageSite& site, int64_t run, uint32_t rank, const Status& why) override;
  void Refuse(const MessageSite& site, const CallId& id, const Status& why);

  // Returns the selector for calls that may run the lists of `site` or of `others`. All executables with these calls
  // share one selector, because processes compile and drop executables at different times. `step` distinguishes these
  // calls from other steps' calls on the same devices. `lost_rails` uses the rank numbers of `site`.
  std::shared_ptr<ScheduleSelector> SelectorOf(const MessageSite& site,
                                               const std::vector<std::shared_ptr<MessageSite>>& others,
                                               ScheduleSelector::Rule rule, uint64_t step,
                                               std::vector<ScheduleSelector::LostRail> lost_rails = {});

  // Decides which plan the calls with plan="auto" run.
  PlanSelector& plans() { return decider_.plans(); }

  void OnNotice(uint32_t process, std::string_view notice) override;
  void OnPeerGone(uint32_t process, const Status& why) override { Lose({process, why, false, Clock::now()}); }
  void OnPeerLeft(uint32_t process, const Status& why) override { Lose({process, why, true, Clock::now()}); }
  void OnRail(uint32_t process, uint32_t rail, bool is_open) override {
    decider_.lost_rails().Change(process, rail, is_open);
  }

  std::vector<GoneProcess> gone() const { return calls_.gone(); }
  std::string LastCallsJson() const { return calls_.LastCallsJson(); }

  // Fails the calls that have waited for `deadline` seconds. Returns whether some calls still wait.
  bool FailOverdue(Clock::time_point now, double deadline);
  bool waiting() const { return !waiting_.empty() || calls_.open() > 0; }

  // See CallMatcher. ForgetCommunicator also drops the communicator's selectors.
  void Forget(const MessageSite* site) override { calls_.Forget(*site); }
  void ForgetCommunicator(uint64_t communicator);

 private:
  // Functions that join ranks to calls.
  bool is_connected() const { return !closing_ && driver_.transport() != nullptr; }
  Transport& transport() const { return *driver_.transport(); }
  Status Check(const MessageSite& site) const;
  bool TryExchange(const ArrivingRank& arriving, std::chrono::nanoseconds wait);
  WaitLimits LimitsOf(std::chrono::nanoseconds arrivals) const;
  void BeginHelped(ArrivingRank arriving, bool helps);
  void Begin(ArrivingRank arriving);
  std::shared_ptr<MessageCall> Join(const ArrivingRank& arriving, bool& is_new);
  void OnArrival(uint32_t process, const Arrival& arrival);
  std::shared_ptr<MessageCall> KeepArrival(PeerArrival peer);

  // Functions that select the schedules of calls.
  void KeepDecided(const std::shared_ptr<const MessageSite>& site);
  bool Select(ArrivingRank& arriving);
  void Announce(const MessageSite& site, const CallId& id, const ScheduleSelector::Decision& decision);
  void OnDecided(uint32_t process, const Decided& decided);
  void OnWaiting(uint32_t process, const Arrival& arrival);
  void DecideByTurns(const std::shared_ptr<const MessageSite>& site, const CallId& id);

  // Functions for ranks that wait until their calls' schedules are decided.
  void Wait(ArrivingRank arriving);
  bool Differs(const ArrivingRank& arriving) const;
  void StartDecided(const CallId& call);
  void StartAllDecided(Clock::time_point overdue = Clock::time_point::min());
  bool LacksProcess(const ArrivingRank& arriving) const;
  bool MayStart(ArrivingRank& arriving, Clock::time_point overdue);
  void Start(std::vector<ArrivingRank> ranks);
  void StartTaken(ArrivingRank& arriving);
  void Start(ArrivingRank& arriving);

  // Functions that fail calls.
  void OnFailure(uint32_t process, Failure failure);
  void SendDifference(const CallMatcher::Finished& call, uint32_t process, const Arrival& arrival);
  void Lose(const GoneProcess& found);

  CallThreads& threads_;
  std::atomic<bool> closing_{false};
  CallMatcher calls_;
  MessageDriver driver_{threads_, calls_};
  WaitingRanks waiting_;
  std::mutex mutex_;  // guards decided_
  // The sites whose calls this process decides, by communicator and fingerprint. The process may decide a call before
  // its own ranks arrive.
  static constexpr size_t kDecidedSites = 1024;
  BoundedMap<std::pair<uint64_t, uint64_t>, std::weak_ptr<const MessageSite>> decided_{kDecidedSites};
  Decider decider_{[this] {
    const User user(driver_.users());
    StartAllDecided();
  }};
};

}  // namespace jaxcomm

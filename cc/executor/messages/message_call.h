// One execution of a call site between processes. Knows which ranks have arrived, which tasks may start, and which
// ranks are done.
//
//   MessageCall call(site, id, /*number=*/412, first, Clock::now());
//   MessageSteps steps = call.Arrive(rank, buffers, done, now);
//   // … start each of steps.tasks, and report each task's end. When `count` posts and sends have begun:
//   steps = call.Started(count);
//
// Thread-safe. Never calls the transport, so no lock of the call is held while the transport runs. The caller starts
// each task of steps.tasks exactly once, reports with Started how many posts and sends have begun, and invokes every
// completion. A failed call returns no more tasks. When no task of a failed call runs any more, the call sets
// MessageSteps::ended. The caller then cancels the call in the transport, and invokes the completions that TakeWaiting
// returns. Nothing accesses the ranks' memory after that.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/calls/buffers.h"
#include "cc/executor/messages/gone_process.h"
#include "cc/executor/messages/message_memory.h"
#include "cc/executor/messages/notices.h"
#include "cc/executor/sites/message_site.h"
#include "cc/executor/threads/completion.h"
#include "cc/executor/threads/timer.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A task to start: a receive to post, an addition, or a send. `peers`: for a send, the receivers, as indices in
// MessageTask::peers.
struct MessageStep {
  uint32_t local;
  uint32_t task;
  std::vector<uint32_t> peers;
};

struct MessageSteps {
  std::vector<MessageStep> tasks;
  std::vector<Completion> completions;
  std::optional<uint32_t> arrived;  // the caller announces this rank's arrival before it starts the rank's sends
  bool keeps_too_much = false;      // the call keeps transport memory: the caller runs CopyViews after a short time
  bool failed = false;              // the caller reports the failure to the other processes
  bool ended = false;               // the call has failed and none of its tasks runs
  bool over = false;                // the call has no further steps
};

class MessageCall {
 public:
  // `first`: the rank of this process that begins the call. `refused`: if this is an error, the call will fail with the
  // error, even if another error occurs first.
  MessageCall(std::shared_ptr<const MessageSite> site, const CallId& id, int64_t number, uint32_t first,
              Clock::time_point start, Status refused = Status());

  const MessageSite& site() const { return *site_; }
  const std::shared_ptr<const MessageSite>& shared_site() const { return site_; }
  const CallId& id() const { return id_; }
  uint32_t first() const { return first_; }
  int64_t number() const { return number_; }
  // Whether the call began before this process knew the call's schedule. Such a call can only fail.
  bool lacks_schedule() const { return lacks_schedule_; }
  // Whether ranks with this fingerprint belong to the call.
  bool Accepts(uint64_t fingerprint) const {
    return fingerprint == site_->fingerprint() || (lacks_schedule_ && site_->HasFingerprint(fingerprint));
  }
  Clock::time_point start() const { return start_; }
  const MessageTask& task(const MessageStep& step) const { return graph(step.local).tasks()[step.task]; }
  // The memory of a rank that has arrived.
  MessageMemory& memory(uint32_t local) { return *locals_[local].memory; }
  uint32_t rank(uint32_t local) const { return site_->ranks().locals()[local].rank; }
  // Converts `in_group`, a rank's number in its group, to the rank's number in the call. `local` is the index of a
  // local rank in the same group.
  uint32_t RankOf(uint32_t local, uint32_t in_group) const;
  MessageId Id(const MessageStep& step, const MessageTask::Peer& peer) const;

  // If Arrive throws, `done` is unchanged.
  MessageSteps Arrive(uint32_t rank, Buffers buffers, Done&& done, Clock::time_point now);
  MessageSteps PeerArrived(const Arrival& arrival, uint32_t process, Clock::time_point now);
  MessageSteps Received(const MessageStep& step, const Status& status, std::shared_ptr<const std::byte> view,
                        bool may_keep, const std::vector<ByteRange>& lost = {});
  // A view is transport memory that holds a received message. Copies the kept views of messages whose additions still
  // wait for other messages, and releases these views. From then on, a message whose addition must wait is copied on
  // arrival unless the transport allows the call to keep the view. If the call has progressed after `unless_after`,
  // copies nothing and sets keeps_too_much.
  MessageSteps CopyViews(Clock::time_point unless_after);
  MessageSteps Sent(const MessageStep& step, const Status& status);
  // Called if a send no longer reads its memory but has not ended. Starts the tasks that wait to overwrite the memory.
  MessageSteps Freed(const MessageStep& step);
  MessageSteps Add(const MessageStep& step);
  MessageSteps Started(size_t count);

  // Fails the call unless it is over. `announce`: whether the caller must report the error to the other processes.
  MessageSteps Fail(Status why, bool announce);
  // Fails the call if a rank of the ended process has not arrived. If all ranks of the process have arrived, the call
  // continues, because the messages of the process may have arrived before the call posts their receives. The Post of a
  // message that never arrived fails. If the process left because another process of the group had ended, the error
  // names the other process's rank.
  MessageSteps PeerGone(const GoneProcess& gone);
  std::vector<Completion> TakeWaiting();

  // The ranks and tasks that the call waits for.
  struct Delay {
    // Ranks that have not arrived. If lack_schedule: ranks without the schedule. If lacks_decision: the deciding rank.
    std::vector<uint32_t> missing;
    bool lack_schedule = false;         // no rank is missing, but some lack the schedule, which this process knows
    bool lacks_decision = false;        // no rank is missing, but this process does not know the schedule
    std::vector<uint32_t> silent;       // if all ranks have arrived: ranks whose messages are missing
    std::vector<uint32_t> unaccepting;  // if no message is missing: ranks that have not accepted all messages
    std::vector<uint32_t> waiting;
    Clock::duration waited;
  };
  // Returns nullopt if the call has failed or is over, or has not waited for `deadline` seconds. The wait counts from
  // the beginning of the call or, after all ranks have arrived, from the call's last progress.
  std::optional<Delay> Overdue(Clock::time_point now, double deadline) const;
  CallName name() const { return site_->NameCall(number_); }
  std::string Describe() const { return name().Text(); }
  // The error of a rank that joins this call from another site. `text` describes that site.
  Status Differs(uint32_t rank, const std::string& text) const { return site_->Differs(name(), rank, text, first_); }

  bool AllHereHaveArrived() const;
  bool failed() const { return !failure().ok(); }
  Status failure() const;

 private:
  struct Local {
    std::optional<MessageMemory> memory;  // nullopt until the rank has arrived
    Done done;
    bool done_is_quick = false;
    // The number of tasks that must end before each task. For a send that has begun: the number of receivers to which
    // the send has not ended.
    std::vector<uint32_t> blockers;
    // For each send that has begun, the number of receivers for which the send still reads its memory. For any other
    // task, 1 until the task ends. At 0, the task blocks no other task.
    std::vector<uint32_t> unfreed;
    uint32_t tasks_left = 0;
    uint32_t lossy_left = 0;  // lossy messages that have not arrived
    Clock::time_point ended;
    double own = 0;  // seconds since the rank's previous call ended
  };
  struct Rank {
    bool arrived = false;
    bool waits = false;  // the rank has announced itself, but waits until the call's schedule is decided
    Clock::time_point at;
    uint32_t receives_left = 0;       // messages that this process has yet to receive from the rank
    std::vector<MessageStep> unsent;  // sends to the rank; they wait until the rank has arrived
  };

  const MessageGraph& graph(uint32_t local) const { return site_->graph(local); }
  bool IsOver() const { return missing_ == 0 && locals_left_ == 0; }
  void Begin(uint32_t local, uint32_t task, MessageSteps& steps);
  void End(uint32_t local, uint32_t task, MessageSteps& steps);
  void BeginWaiting(uint32_t local, uint32_t task, MessageSteps& steps);
  Status GoneError(uint32_t rank, const Status& why) const;
  std::vector<uint32_t> FindUnaccepting() const;
  void MarkArrived(uint32_t rank, Clock::time_point now, MessageSteps& steps);
  void CheckEnd(uint32_t local, MessageSteps& steps);
  void Record();
  FailedCall Failed() const;
  std::vector<double> Own() const;
  void FailLocked(Status why, bool announce, MessageSteps& steps);
  void CopyView(const MessageStep& step, std::shared_ptr<const std::byte> view, std::unique_lock<std::mutex>& lock,
                MessageSteps& steps);
  void StopRunning(size_t count, MessageSteps& steps);

  const std::shared_ptr<const MessageSite> site_;
  const CallId id_;
  const int64_t number_;
  const uint32_t first_;
  const Clock::time_point start_;
  const bool lacks_schedule_;

  mutable std::mutex mutex_;
  std::vector<Local> locals_;
  std::vector<Rank> ranks_;
  uint32_t missing_ = 0;           // ranks of this process's groups that have not arrived
  uint32_t locals_left_ = 0;       // ranks of this process that are not done
  size_t running_ = 0;             // tasks that are being started, or that are copying or adding now
  std::vector<MessageStep> kept_;  // the receives whose views are kept; an addition may have used a view already
  bool keeps_too_much_ = false, copies_views_;
  int64_t early_work_ = 0;
  Clock::time_point progress_;
  bool recorded_ = false;
  bool ended_ = false;
  const Status refused_;
  Status failure_;
};

}  // namespace jaxcomm

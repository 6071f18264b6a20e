// One execution of a call site between processes, as one of them sees it: the ranks that have arrived, the tasks that
// may start, the ranks that are done.
//
//   MessageCall call(site, id, /*number=*/412, first, Clock::now());
//   MessageSteps steps = call.Arrive(rank, buffers, done, now);
//   // … start each of steps.tasks; report its end; then, as posts and sends have begun:
//   steps = call.Started(count);
//
// Thread-safe; calls no transport itself, so no lock is held when one is called. The caller starts every task that it
// is given exactly once, reports posts and sends that it has handed over, and invokes every completion. A failed call
// gives no more tasks. When no task is being started or added any more, it is `ended`: the caller cancels it in the
// transport, and then completes the ranks of TakeWaiting. From then on nothing touches the ranks' memory.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/executor/buffers.h"
#include "cc/executor/message_memory.h"
#include "cc/executor/message_site.h"
#include "cc/executor/notices.h"
#include "cc/executor/timer.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// A task to start: a receive to post, an addition, or a send to some of its peers, by their index.
struct MessageStep {
  uint32_t local;
  uint32_t task;
  std::vector<uint32_t> peers;
};

struct MessageSteps {
  std::vector<MessageStep> tasks;
  std::vector<Completion> completions;
  std::optional<uint32_t> arrived;  // the rank whose arrival is sent to the other processes before its messages
  bool keeps_too_much = false;      // of the transport's: if soon nothing comes any more, it is to copy its views
  bool failed = false;              // the failure is sent to the other processes
  bool ended = false;
  bool over = false;  // nothing will come of this call any more
};

class MessageCall {
 public:
  // `first`: the rank of this process that begins the call.
  MessageCall(std::shared_ptr<const MessageSite> site, const CallId& id, int64_t number, uint32_t first,
              Clock::time_point start);

  const MessageSite& site() const { return *site_; }
  const std::shared_ptr<const MessageSite>& shared_site() const { return site_; }
  const CallId& id() const { return id_; }
  uint32_t first() const { return first_; }
  // Whether the call began before its schedule was known, so that it can only fail.
  bool lacks_schedule() const { return lacks_schedule_; }
  // Whether ranks with this fingerprint belong to the call.
  bool Accepts(uint64_t fingerprint) const {
    return fingerprint == site_->fingerprint() || (lacks_schedule_ && site_->HasFingerprint(fingerprint));
  }
  Clock::time_point start() const { return start_; }
  const MessageTask& task(const MessageStep& step) const { return graph(step.local).tasks()[step.task]; }
  // Of a rank that has arrived.
  MessageMemory& memory(uint32_t local) { return *locals_[local].memory; }
  uint32_t rank(uint32_t local) const { return site_->locals()[local].rank; }
  // The number, in the call, of a rank of a local rank's group.
  uint32_t RankOf(uint32_t local, uint32_t in_group) const;
  MessageId Id(const MessageStep& step, const MessageTask::Peer& peer) const;

  // Where it throws, `done` has not been taken.
  MessageSteps Arrive(uint32_t rank, Buffers buffers, Done&& done, Clock::time_point now);
  MessageSteps PeerArrived(const Arrival& arrival, uint32_t process, Clock::time_point now);
  MessageSteps Received(const MessageStep& step, const Status& status, std::shared_ptr<const std::byte> view,
                        bool may_keep, const std::vector<ByteRange>& lost = {});
  // Copies the views that wait for other messages, from now on at once where the transport wants them back; not yet if
  // something has come or been added after that moment.
  MessageSteps CopyViews(Clock::time_point unless_after);
  MessageSteps Sent(const MessageStep& step, const Status& status);
  MessageSteps Add(const MessageStep& step);
  MessageSteps Started(size_t count);

  // Ends the call with this error, unless it is over; `announce`: the other processes do not know it.
  MessageSteps Fail(Status why, bool announce);
  // Fails the call if a rank of the process has not arrived. Otherwise the missing messages may have arrived before
  // their Post; the Post of any other fails.
  MessageSteps PeerGone(uint32_t process, const Status& why);
  std::vector<Completion> TakeWaiting();

  // The ranks and tasks that the call waits for.
  struct Delay {
    std::vector<uint32_t> missing;  // ranks that have not arrived; if all have, those that lack the call's schedule
    bool lack_schedule = false;     // in the second case
    std::vector<uint32_t> silent;   // if all have: those whose messages are missing
    std::vector<uint32_t> waiting;
    Clock::duration waited;
  };
  // None: the call is over, or less than `deadline` seconds have passed since it began or, if all ranks have arrived,
  // since the last progress.
  std::optional<Delay> Overdue(Clock::time_point now, double deadline) const;
  CallName name() const { return site_->NameCall(number_); }
  std::string Describe() const { return name().Text(); }
  // The error of a rank that joins this call from another site, whose text this is.
  Status Differs(uint32_t rank, const std::string& text) const { return site_->Differs(name(), rank, text, first_); }

  bool AllHereHaveArrived() const;
  bool failed() const { return !failure().ok(); }
  Status failure() const;

 private:
  struct Local {
    std::optional<MessageMemory> memory;  // once it has arrived
    Done done;
    bool done_is_quick = false;
    std::vector<uint32_t> blockers;  // by task: those to end before it, or receivers to be sent to
    uint32_t tasks_left = 0;
    Clock::time_point ended;
    double own = 0;  // seconds since its call before ended
  };
  struct Rank {
    bool arrived = false;
    bool waits = false;  // it has come, but waits until the call's schedule is decided
    Clock::time_point at;
    uint32_t receives_left = 0;       // messages that ranks of this process have yet to receive from it
    std::vector<MessageStep> unsent;  // large messages for it, which wait for its arrival
  };

  const MessageGraph& graph(uint32_t local) const { return site_->graph(local); }
  bool IsOver() const { return missing_ == 0 && locals_left_ == 0; }
  void Begin(uint32_t local, uint32_t task, MessageSteps& steps);
  void End(uint32_t local, uint32_t task, MessageSteps& steps);
  void MarkArrived(uint32_t rank, Clock::time_point now, MessageSteps& steps);
  void CheckEnd(uint32_t local, MessageSteps& steps);
  void Record();
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
  uint32_t missing_ = 0;           // ranks that concern this process and have not arrived
  uint32_t locals_left_ = 0;       // ranks of this process that are not done
  size_t running_ = 0;             // tasks that are being started, copied or added
  std::vector<MessageStep> kept_;  // receives whose views CopyViews copies; some have been used up
  bool keeps_too_much_ = false, copies_views_;
  int64_t early_work_ = 0;
  Clock::time_point progress_;
  bool recorded_ = false;
  bool ended_ = false;
  Status failure_;
};

}  // namespace jaxcomm

// One transport made of several, of any kind, that lead to the same processes: rails.
//
//   Rails rails(/*processes=*/4, /*rails=*/2, &events);
//   ... make each rail's transport, with rails.events(0), rails.events(1) as its Events ...
//   rails.Connect({&eth0, &eth1});
//   rails.AddProcess(3, {{0, {1024, 0}}, {1 << 20, {820, 204}}}, {0, 1});   // before its rails may bring anything
//   rails.Start();
//   for (const Rails::Lost& lost : rails.lost()) rails.Restore(lost, [&] { ... connect it anew ... });
//
// The sender divides the segments of a large message among the open rails, by their shares; the receiver has posted
// each segment on all rails and takes it from the rail that brings it. The sender keeps a segment where it lies until
// the receiver has confirmed it and no rail reads it any more. A lossy message is one segment, of which its rail loses
// no more than it may; if that rail is fenced, it comes anew over another one. A message of kMaxSmall bytes or less is
// copied and goes with the notices, in order over the first rail: it is posted on no rail, and the next notice to its
// sender confirms it. A process that sends more of these than kMaxEarlyBytes before they are posted is cut off.
//
// A rail that fails, or is silent while another one is not, is fenced on both sides: no byte of it is read any more.
// All other processes are then asked over it, so that a host that has lost it is known to them all.
// Then the segments that the receiver lacks go over the open rails. The last rail is not fenced for its silence; if it
// fails, the process is gone. The rails of a process that leaves end one by one, each behind the messages that it had
// to carry.
//
// The transports are the caller's. They have run their last callback before this ends. Thread-safe, as they are.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cc/transport/cancelled_calls.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/posted.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/rails/rail_history.h"
#include "cc/transport/rails/rail_table.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class Rails : public Transport, public LossyTransport {
 public:
  // A rail to a process, and how often both sides have fenced it.
  struct Lost {
    uint32_t process, rail, fences;
  };

  Rails(uint32_t processes, uint32_t rails, Events* events);
  ~Rails() override;

  Events* events(uint32_t rail) { return &listeners_[rail]; }
  void Connect(std::vector<RailTransport*> rails);
  // `connected`: the rails that lead to it; `down`: those that will once they are restored, of which both sides count
  // one fence. An error: another one has a share, or none is connected.
  Status AddProcess(uint32_t process, const std::vector<RailTable::Range>& shares,
                    const std::vector<uint32_t>& connected, const std::vector<uint32_t>& down = {});
  // From now on a thread looks for silent rails, as long as segments or notices are under way.
  Status Start();
  // No longer; before the transports end.
  void Stop();

  // All rails that lead to processes.
  struct State {
    uint32_t process, rail, fences;
    bool is_open, has_left;                            // neither: it has been fenced
    int64_t bytes;                                     // that the process has confirmed
    std::vector<std::pair<int64_t, uint32_t>> shares;  // in force now, by the least bytes of a call
    RailHistory history;
  };
  std::vector<State> states() const;
  // The rails that may be restored.
  std::vector<Lost> lost() const;
  // `connect` gives the rail's transport a new connection with the process. An error: it may not be restored now.
  Status Restore(const Lost& lost, const std::function<Status()>& connect);
  // One look of that thread. Returns whether nothing is under way.
  bool Look(std::chrono::steady_clock::time_point now);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  LossyTransport* lossy() override { return this; }
  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, int64_t may_lose,
                 ReceivedLossy done) override;
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important, int64_t may_lose,
                 Sent done) override;
  void Flush() override;
  void Cancel(const CallId& call) override;
  void Expect() override;
  void EndExpecting() override;
  // Only if all processes have the same first rail, which carries small calls: a thread cannot sleep on two.
  void Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) override;

 private:
  class Listener : public Events {
   public:
    void OnNotice(uint32_t process, std::string_view notice) override { owner->ReceiveNotice(process, rail, notice); }
    void OnPeerGone(uint32_t process, const Status& why) override { owner->End(process, rail, why, /*left=*/false); }
    void OnPeerLeft(uint32_t process, const Status& why) override { owner->End(process, rail, why, /*left=*/true); }

    Rails* owner;
    uint32_t rail;
  };
  struct Outgoing;
  struct Peer;
  // A callback of a call's message.
  struct Due {
    CallId call;
    std::function<void()> run;
  };
  // Of an outgoing message that may lose a part.
  struct Loss {
    std::vector<bool> important;
    int64_t may_lose;
  };
  using Lock = std::unique_lock<std::mutex>;

  void SendNotice(uint32_t process, std::optional<uint32_t> rail, const std::string& bytes);
  void Deliver(uint32_t process);
  // Has Deliver report that the rail has been fenced, or is open again. The lock is held.
  void Report(Peer& peer, uint32_t rail, bool is_open);
  void CallBack(std::vector<Due> due);
  void CallBack(const CallId& call, const Received& done, const Status& status,
                std::shared_ptr<const std::byte> view = nullptr);
  // Whether a thread may help, on the first rail.
  bool helped() const { return first_ && have_one_first_; }

  // receive.cc, with Post
  void PostAs(const MessageId& id, Posted posted);
  void PostOn(uint32_t process, const MessageId& id, const std::vector<Lost>& rails);
  void Receive(const Lost& rail, const MessageId& id, const Status& status, std::shared_ptr<const std::byte> view,
               const std::vector<ByteRange>& lost);
  void ReceiveEarly(uint32_t process, const MessageId& id, int64_t bytes);
  void ReceiveNotice(uint32_t process, uint32_t rail, std::string_view bytes);
  void ReceiveNumbered(uint32_t process, uint32_t rail, std::string_view bytes);

  // send.cc, with Send
  void SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, std::unique_ptr<Loss> loss);
  void SendSmall(const std::vector<Receiver>& to, const std::vector<ConstSpan>& spans, int64_t bytes, const Sent& done);
  void SendOn(uint32_t rail, const std::vector<Receiver>& to, const std::shared_ptr<Outgoing>& message);
  void EndReading(const std::shared_ptr<Outgoing>& message, size_t receivers);
  void EndReceiver(const std::shared_ptr<Outgoing>& message, std::vector<Due>& due);
  void Confirm(Peer& peer, std::string_view ids, std::vector<Due>& due);

  // lossy.cc, with PostLossy and SendLossy
  bool MayLose(uint32_t process, uint32_t rail);
  void SendPosted(const Lost& restored);
  void ReceivePosted(uint32_t process, uint32_t rail, std::string_view bytes);

  // watch.cc, with Start, Stop, Look and states
  void Watch();
  void Wake();
  void Suspect(uint32_t rail);
  void Ask(uint32_t process, uint32_t rail);

  // failover.cc
  void ReceiveFences(uint32_t process, std::string_view bytes);
  void End(uint32_t process, uint32_t rail, const Status& why, bool left);
  void EndAll(uint32_t process, const Status& why);
  void Fence(uint32_t process, const std::vector<uint32_t>& rails, const Status& why);
  void SendFences(uint32_t process);
  void AskAgain(uint32_t process);
  void SendAgain(uint32_t process, std::string_view fences);
  void CheckEnd(uint32_t process);

  // restore.cc, with lost and Restore
  bool IsLost(const Lost& lost) const;

  Events* const events_;
  std::vector<Listener> listeners_;
  std::vector<RailTransport*> rails_;
  std::optional<uint32_t> first_;  // of all processes, at the start
  bool have_one_first_ = true;

  mutable std::mutex mutex_;  // of what follows; not held in calls of the transports, nor in callbacks
  std::vector<std::unique_ptr<Peer>> peers_;
  CancelledCalls cancelled_;
  std::multimap<CallId, std::shared_ptr<Outgoing>> only_read_;  // confirmed, but a rail still reads them

  std::mutex watch_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> watching_{false};
  std::atomic<uint64_t> suspects_{0};  // rails fenced to some process, as bits: others are asked over them
  bool stopping_ = false;
  std::thread watch_;
};

}  // namespace jaxcomm

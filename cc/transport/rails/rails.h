// Combines several transports, the rails, into one transport. All rails lead to the same processes; each rail may be of
// any kind.
//
//   Rails rails(/*processes=*/4, /*rails=*/2, &events);
//   ... make one transport per rail; the Events of rail i are rails.events(i) ...
//   rails.Connect({&eth0, &eth1});
//   rails.AddProcess(3, {{0, {1024, 0}}, {1 << 20, {820, 204}}}, {0, 1});   // before bytes of process 3 arrive
//   rails.Start();
//   for (const Rails::Lost& lost : rails.lost()) rails.Restore(lost, [&] { ... reconnect the rail ... });
//
// The sender divides the segments of a large message among the open rails by the rails' shares. The receiver posts each
// segment on all rails and takes the segment from the rail on which it arrives. The sender may change a segment only
// after the receiver has confirmed the segment and no rail reads it any more. SendCopy copies the segment, so that an
// in-place sum need not wait for the confirmation at each step. All copies together take at most kMaxCopiedBytes.
// A lossy message is one segment on one rail. At most `may_lose` of its bytes may be lost. If the rail is fenced, the
// whole message is resent over another rail.
// A small message, of at most kMaxSmall bytes, is copied and sent like a notice, in order over the first rail: the rail
// with the largest share in the smallest calls. The receiver does not post a small message on any rail. The receiver's
// next notice to the sender confirms the message. Small messages that arrive before their Post are kept. If the kept
// messages of one sender exceed kMaxEarlyBytes, the receiver cuts off this sender.
//
// A rail between two processes is fenced on both sides if it fails, or if it is silent while another rail between them
// makes progress. No byte that arrives over a fenced rail is read. Both sides then test the same rail to every other
// process with a notice. If the host of one of these processes does not acknowledge the notice, the rail to that
// process is fenced, too. Thus every process learns which host lacks the rail. The segments that the receiver lacks are
// resent over the open rails.
// The last open rail to a process is never fenced for silence. If that rail fails, the process counts as failed. If a
// process leaves, each rail to the process ends after the last message on that rail.
//
// The caller owns the transports. Their last callback must return before the destructor of Rails runs. Thread-safe.
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
  // A rail to a process, and the number of times that both sides have fenced it.
  struct Lost {
    uint32_t process, rail, fences;
  };

  static constexpr int64_t kMaxCopiedBytes = 64 << 20;

  Rails(uint32_t processes, uint32_t rails, Events* events);
  ~Rails() override;

  Events* events(uint32_t rail) { return &listeners_[rail]; }
  void Connect(std::vector<RailTransport*> rails);
  // `connected`: rails that lead to the process now. `down`: rails that lead to the process only after Restore; each
  // counts as fenced once on both sides. Returns an error if a rail in neither list has a share, or if no rail is
  // connected.
  Status AddProcess(uint32_t process, const std::vector<RailTable::Range>& shares,
                    const std::vector<uint32_t>& connected, const std::vector<uint32_t>& down = {});
  // Sets the shares of all messages sent from now on. May be called at any time after AddProcess; the other side need
  // not call it. Returns an error if a rail with a share does not lead to the process, or if `shares` are invalid.
  Status SetShares(uint32_t process, const std::vector<RailTable::Range>& shares);
  // Starts a thread that looks for silent rails while segments or notices are in flight.
  Status Start();
  // Ends the thread of Start. Must be called before the transports are destroyed.
  void Stop();

  // A rail that leads to a process.
  struct State {
    uint32_t process, rail, fences;
    bool is_open, has_left;  // if both are false, the rail is fenced, or a fence or restoration is in progress
    int64_t bytes;           // number of bytes that the process has confirmed
    // The rail's current shares. In calls of at least `first` bytes, the rail's share is `second`.
    std::vector<std::pair<int64_t, uint32_t>> shares;
    RailHistory history;
  };
  std::vector<State> states() const;
  // Returns the rails that may be restored.
  std::vector<Lost> lost() const;
  // Calls `connect`, which reconnects the rail's transport to the process. Returns an error if `connect` fails, or if
  // the rail cannot be restored now.
  Status Restore(const Lost& lost, const std::function<Status()>& connect);
  // Looks for silent rails once. Returns true if no message or notice is in flight.
  bool Look(std::chrono::steady_clock::time_point now);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  bool SendCopy(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  LossyTransport* lossy() override { return this; }
  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                 ReceivedLossy done) override;
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                 const LossLimit& limit, Sent done) override;
  void Flush() override;
  bool MayKeep(uint32_t process) override;
  void Cancel(const CallId& call) override;
  void Expect() override;
  void EndExpecting() override;
  // Helps on the first rail, which carries small calls. A thread can wait on only one rail. If the first rails of two
  // processes differ, Help therefore only flushes.
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
  // A callback to run now. It belongs to a message of `call`.
  struct Due {
    CallId call;
    std::function<void()> run;
  };
  // The permitted loss of an outgoing lossy message.
  struct Loss {
    std::vector<bool> important;
    LossLimit limit;
  };
  using Lock = std::unique_lock<std::mutex>;

  void SendNotice(uint32_t process, std::optional<uint32_t> rail, const std::string& bytes);
  void Deliver(uint32_t process);
  // Queues an event for Deliver: the rail has been fenced, or is open again. The caller holds the lock.
  void Report(Peer& peer, uint32_t rail, bool is_open);
  void CallBack(std::vector<Due> due);
  void CallBack(const CallId& call, const Received& done, const Status& status,
                std::shared_ptr<const std::byte> view = nullptr);
  // Returns whether Help may receive on the first rail.
  bool helped() const { return first_ && have_one_first_; }

  // Receiving (receive.cc, which also holds Post).
  void PostAs(const MessageId& id, Posted posted);
  void PostOn(uint32_t process, const MessageId& id, const std::vector<Lost>& rails);
  void Receive(const Lost& rail, const MessageId& id, const Status& status, std::shared_ptr<const std::byte> view,
               const std::vector<ByteRange>& lost);
  void ReceiveEarly(uint32_t process, const MessageId& id, int64_t bytes);
  void ReceiveNotice(uint32_t process, uint32_t rail, std::string_view bytes);
  void ReceiveNumbered(uint32_t process, uint32_t rail, std::string_view bytes);

  // Sending (send.cc, which also holds Send).
  bool SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, std::unique_ptr<Loss> loss,
              bool copies);
  void SendSmall(const std::vector<Receiver>& to, const std::vector<ConstSpan>& spans, int64_t bytes, const Sent& done);
  void SendOn(uint32_t rail, const std::vector<Receiver>& to, const std::shared_ptr<Outgoing>& message);
  void EndReading(const std::shared_ptr<Outgoing>& message, size_t receivers);
  void EndReceiver(const std::shared_ptr<Outgoing>& message, std::vector<Due>& due);
  void Confirm(Peer& peer, std::string_view ids, std::vector<Due>& due);

  // Lossy messages (lossy.cc, which also holds PostLossy and SendLossy).
  bool MayLose(uint32_t process, uint32_t rail);
  void SendPosted(const Lost& restored);
  void ReceivePosted(uint32_t process, uint32_t rail, std::string_view bytes);

  // The search for silent rails (watch.cc, which also holds Start, Stop, Look and states).
  void Watch();
  void Wake();
  void Suspect(uint32_t rail);
  void Ask(uint32_t process, uint32_t rail);

  // Fences (failover.cc).
  void ReceiveFences(uint32_t process, std::string_view bytes);
  void End(uint32_t process, uint32_t rail, const Status& why, bool left);
  void EndAll(uint32_t process, const Status& why);
  void Fence(uint32_t process, const std::vector<uint32_t>& rails, const Status& why);
  void SendFences(uint32_t process);
  void AskAgain(uint32_t process);
  void SendAgain(uint32_t process, std::string_view fences);
  void CheckEnd(uint32_t process);

  // Restored rails (restore.cc, which also holds lost and Restore).
  bool IsLost(const Lost& lost) const;

  Events* const events_;
  std::vector<Listener> listeners_;
  std::vector<RailTransport*> rails_;
  std::optional<uint32_t> first_;  // the first rail to the most recently added process
  bool have_one_first_ = true;     // whether all processes have the same first rail
  const std::shared_ptr<std::atomic<int64_t>> copied_bytes_ = std::make_shared<std::atomic<int64_t>>(0);

  mutable std::mutex mutex_;  // guards the next three members; not held while transports or callbacks are called
  std::vector<std::unique_ptr<Peer>> peers_;
  CancelledCalls cancelled_;
  std::multimap<CallId, std::shared_ptr<Outgoing>> only_read_;  // confirmed messages that a rail still reads

  std::mutex watch_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> watching_{false};
  // Bitmask of newly fenced rails. The next Look sends kAsk over each of these rails to all processes.
  std::atomic<uint64_t> suspects_{0};
  bool stopping_ = false;
  std::thread watch_;
};

}  // namespace jaxcomm

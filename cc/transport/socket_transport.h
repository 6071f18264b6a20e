// The common part of all kinds of transport over sockets: the functions that users call, and the progress thread.
//
//   class TcpTransport : public SocketTransport { ... };   // reads and writes the sockets, and detects their end
//
// The progress thread polls and reads the sockets and runs the callbacks, unless a thread in Help does so. When the
// last call that needs messages has ended, the progress thread pauses for a moment, because the thread of the next call
// may then be in Help and receive that call's messages itself. The progress thread also finds silent hosts: a process
// counts as gone if its host has not answered for `silence`. Flush sends from the calling thread. The progress thread
// later sends the bytes that the kernel did not accept at once. A small message is copied, and counts as sent at once.
// Cancel destroys dropped callbacks while it holds a lock. Destructors of objects that these callbacks own must
// therefore not call the transport.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/yielding.h"
#include "cc/transport/callbacks.h"
#include "cc/transport/frame.h"
#include "cc/transport/inbox.h"
#include "cc/transport/outgoing.h"
#include "cc/transport/rail_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The state that SocketTransport keeps for another process. SocketTransport::Write sends the pushed messages in order.
struct SocketPeer {
  explicit SocketPeer(uint32_t process) : process(process) {}
  virtual ~SocketPeer() = default;

  // Queues a message. Its spans are read until SocketTransport::Finish is called for the message. `priority`: see
  // Receiver.
  virtual void Push(const Header& header, std::shared_ptr<Outgoing> message, uint32_t priority) = 0;
  // Queues a copy of the payload.
  virtual void PushCopy(const Header& header, const std::vector<ConstSpan>& payload, uint32_t priority) = 0;
  virtual size_t copied_bytes() const = 0;
  // Returns whether the transport reads nothing from the process until a message is posted.
  virtual bool waits() const = 0;
  // Returns whether a thread is in a system call on the connection. The system call may outlast the connection.
  virtual bool is_used() const { return writing; }

  const uint32_t process;
  bool queued = false;   // the next flush writes to the process
  bool writing = false;  // a thread is in Write
  bool blocked = false;  // the kernel accepts no more bytes for now
  bool left = false;     // one side has sent a goodbye
  int silent_looks = 0;  // number of successive checks in which the host was silent
  Status gone;           // ok: the process is connected
};

class SocketTransport : public RailTransport {
 public:
  ~SocketTransport() override;

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  void OnEarly(Early early) override;
  void Withdraw(uint32_t process, const MessageId& id) override;
  void Expect() override;
  void EndExpecting() override;
  void Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) override;

 protected:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  static constexpr uint64_t kWake = UINT64_MAX;  // the epoll key of wake_

  // `rail`: the name of the rail in error texts, if there are several rails.
  SocketTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);
  // `over`: the name of this kind of transport in error texts.
  Status Start(const char* over);
  // Ends the progress thread and returns whether the thread was running. The destructor of a derived class calls Stop
  // first.
  bool Stop();
  // Runs on the progress thread.
  virtual void Work();
  // PostAs and SendAs implement Post and Send. `push` queues the message for a process, and returns false if it has
  // copied the message.
  void PostAs(const MessageId& id, Posted posted);
  using PushMessage = std::function<bool(SocketPeer& peer, const Receiver& receiver, int64_t bytes,
                                         const std::shared_ptr<Outgoing>& message)>;
  void SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, const PushMessage& push);
  // Returns whether Await would return at once. Called without the lock, by the thread that polls the sockets.
  virtual bool HasEvent();
  // From now on, Await reports events of the socket under `key`.
  Status Watch(uint64_t key, int socket);
  Status Gone(uint32_t process, const std::string& why) const;
  // Waits a moment until the last connection to the process has ended. Returns an error if the connection has not ended
  // by then, or if the process is already connected.
  Status AwaitEnd(Lock& lock, uint32_t process);
  void Finish(std::shared_ptr<Outgoing> message);
  // Queues the callback that reports the end of the connection to the process. Must be called before the callbacks of
  // failed messages are queued, so that the caller first learns which process has ended.
  void ReportEnd(const SocketPeer& peer, const Status& why);
  void RunCallbacks(Lock& lock);
  // Wakes the thread that polls the sockets, so that it handles a change of the state.
  void Wake();
  // Must be called after an event of kWake.
  void Rearm();

  const uint32_t process_;
  Events* const events_;
  const std::string rail_;
  const std::chrono::nanoseconds silence_;
  int epoll_ = -1;

  std::mutex mutex_;  // guards all members below; not held in callbacks or in system calls that carry messages
  Callbacks callbacks_;
  Inbox inbox_;
  bool resumes_ = false;  // peers that wait (SocketPeer::waits) may be read again
  bool stopping_ = false;
  std::thread::id server_;  // the thread that polls the sockets; empty while the progress thread pauses

 private:
  // Returns nullptr if the process has never been connected.
  virtual SocketPeer* PeerOf(uint32_t process) = 0;
  virtual std::vector<SocketPeer*> Peers() = 0;
  // Returns a reason if a connected process has been silent since the last check, which was `since` ago.
  virtual std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) = 0;
  virtual void Write(Lock& lock, SocketPeer& peer) = 0;
  virtual void Fail(Lock& lock, SocketPeer& peer, const Status& why) = 0;
  // Reads again from the peers for which SocketPeer::waits() is true.
  virtual void Resume(Lock& lock) = 0;
  // Returns whether queued bytes wait for the polling thread to write them.
  virtual bool HasMore() const = 0;
  // Waits for an event of the sockets or for due work, but not longer than the limit. Handles the events and the work.
  virtual void Await(Lock& lock, std::chrono::nanoseconds limit) = 0;
  // Runs before the progress thread pauses for up to the limit.
  virtual void OnPause(std::chrono::nanoseconds /*limit*/) {}
  // Sends the queued messages, then a goodbye to each process.
  virtual void Depart(Lock& lock) = 0;

  Result<SocketPeer*> Find(uint32_t process);
  void Queue(SocketPeer& peer);
  void WriteQueued(Lock& lock);
  void RunOrWake(Lock& lock, bool was_idle);

  // Progress (socket_progress.cc).
  void Pause(Lock& lock);
  bool MustServe() const;
  void RunDue(Lock& lock);
  void FindSilent(Lock& lock);

  int wake_ = -1;
  std::vector<SocketPeer*> queued_;
  bool has_woken_ = false;
  std::condition_variable changed_;
  int64_t expected_ = 0;  // number of expected calls; may briefly be negative, as EndExpecting may run before Expect
  Clock::time_point quiet_since_;
  Clock::time_point looked_ = Clock::now();  // time of the last search for silent hosts
  std::atomic<int64_t> rests_until_{0};      // used by the thread in Help; see YieldUntil
  std::thread thread_;
};

}  // namespace jaxcomm

// The common part of all kinds of transport over sockets: the functions that users call, and the progress thread.
//
//   class TcpTransport : public SocketTransport { ... };   // reads and writes the sockets, and knows when they end
//
// The progress thread waits for the sockets, reads them, and runs the callbacks; a thread in Help does so in its place.
// For a moment after the last expected call it leaves arriving bytes to such a thread. It also checks that all hosts
// answer: a process is gone if its host has not for `silence`. Flush sends from the calling thread; the progress thread
// sends the bytes that the kernel does not take then. A small message is copied, and counts as sent at once. Cancel
// destroys the callbacks that it drops with a lock held: objects that they own must not call the transport when they
// are released.
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

// Another process, for SocketTransport. Messages that are pushed go out in order with Write.
struct SocketPeer {
  explicit SocketPeer(uint32_t process) : process(process) {}
  virtual ~SocketPeer() = default;

  // The message's bytes are read until it is finished.
  virtual void Push(const Header& header, std::shared_ptr<Outgoing> message) = 0;
  // The payload is copied.
  virtual void PushCopy(const Header& header, const std::vector<ConstSpan>& payload) = 0;
  virtual size_t copied_bytes() const = 0;
  // Whether the process is not read until a message is posted.
  virtual bool waits() const = 0;
  // Whether a thread is in a system call for it, which may outlast its end.
  virtual bool is_used() const { return writing; }

  const uint32_t process;
  bool queued = false;   // to be flushed
  bool writing = false;  // by a thread
  bool blocked = false;  // the kernel takes no more for now
  bool left = false;     // one side has sent a goodbye
  int silent_looks = 0;  // in a row
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
  void Expect() override;
  void EndExpecting() override;
  void Help(std::chrono::nanoseconds limit, bool yields, const std::function<bool()>& over) override;

 protected:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  static constexpr uint64_t kWake = UINT64_MAX;  // among the keys of epoll

  // `rail`: its name for errors, if there are several.
  SocketTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);
  // `over`: the kind, for errors.
  Status Start(const char* over);
  // Ends the progress thread and returns whether it was running. A kind does this first when it ends.
  bool Stop();
  // The progress thread.
  virtual void Work();
  // Post and Send of any kind; `push` hands the message to a process, and returns whether the message waits for it.
  void PostAs(const MessageId& id, Posted posted);
  using PushMessage = std::function<bool(SocketPeer& peer, const Receiver& receiver, int64_t bytes,
                                         const std::shared_ptr<Outgoing>& message)>;
  void SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, const PushMessage& push);
  // From now on Await reports events of the socket under this key.
  Status Watch(uint64_t key, int socket);
  Status Gone(uint32_t process, const std::string& why) const;
  // Waits a moment until the end of the process's last connection is complete. An error: it is not, or there is a
  // connection still.
  Status AwaitEnd(Lock& lock, uint32_t process);
  void Finish(std::shared_ptr<Outgoing> message);
  void RunCallbacks(Lock& lock);
  // Wakes the thread that polls, after a change.
  void Wake();
  // After an event of kWake.
  void Rearm();

  const uint32_t process_;
  Events* const events_;
  const std::string rail_;
  const std::chrono::nanoseconds silence_;
  int epoll_ = -1;

  std::mutex mutex_;  // of all below; not held in system calls that carry messages, nor in callbacks
  Callbacks callbacks_;
  Inbox inbox_;
  bool resumes_ = false;  // waiting peers may go on
  bool stopping_ = false;
  std::thread::id server_;  // the thread that polls the sockets; none: the progress thread pauses

 private:
  // Null: the process has never been connected.
  virtual SocketPeer* PeerOf(uint32_t process) = 0;
  virtual std::vector<SocketPeer*> Peers() = 0;
  // The reason if a connected process has been silent since the last look.
  virtual std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) = 0;
  virtual void Write(Lock& lock, SocketPeer& peer) = 0;
  virtual void Fail(Lock& lock, SocketPeer& peer, const Status& why) = 0;
  // Lets waiting peers go on.
  virtual void Resume(Lock& lock) = 0;
  // Whether bytes wait that only the polling thread writes.
  virtual bool HasMore() const = 0;
  // Waits for the sockets or for due work, at most for the limit, and does it.
  virtual void Await(Lock& lock, std::chrono::nanoseconds limit) = 0;
  // The progress thread pauses, at most for the limit.
  virtual void OnPause(std::chrono::nanoseconds /*limit*/) {}
  // Sends queued messages, and the goodbyes.
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
  int64_t expected_ = 0;  // calls; may briefly be negative, as one may end before it is expected
  Clock::time_point quiet_since_;
  Clock::time_point looked_ = Clock::now();  // for silent hosts
  Yielding yielding_;                        // of the thread that helps
  std::thread thread_;
};

}  // namespace jaxcomm

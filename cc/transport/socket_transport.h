// What the kinds of transport over sockets have in common: what their callers ask for, and who serves the sockets.
//
//   class TcpTransport : public SocketTransport { ... };   // reads and writes the sockets, and knows when they end
//
// One thread serves: it waits for the sockets, reads them, and runs the callbacks, unless another one helps it. For a
// moment after the last call that somebody waits for, it leaves what comes. It also looks, in its own time, whether all
// hosts answer: a process whose host has not for `silence` is gone. Flush sends from the thread that calls it,
// and what the kernel does not take then, the thread that serves sends. A small message is copied, and counts as sent
// at once. Cancel destroys the callbacks that it drops with a lock held: what they own must not call the transport when
// it is released.
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
#include "cc/transport/transport.h"

namespace jaxcomm {

// Another process, as SocketTransport sees it. What is pushed is sent in order, once it is written.
struct SocketPeer {
  explicit SocketPeer(uint32_t process) : process(process) {}
  virtual ~SocketPeer() = default;

  // The message's bytes are read until it is finished.
  virtual void Push(const Header& header, std::shared_ptr<Outgoing> message) = 0;
  // They are copied.
  virtual void PushCopy(const Header& header, const std::vector<ConstSpan>& payload) = 0;
  virtual size_t copied_bytes() const = 0;
  // It is not read until something is posted.
  virtual bool waits() const = 0;
  // A thread is in a system call for it that outlives its end.
  virtual bool is_used() const { return writing; }

  const uint32_t process;
  bool queued = false;   // to be flushed
  bool writing = false;  // a thread does
  bool blocked = false;  // the kernel takes no more for now
  bool left = false;     // one side has said goodbye
  int silent_looks = 0;  // in a row
  Status gone;           // ok: it is not
};

class SocketTransport : public Transport {
 public:
  ~SocketTransport() override;

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
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
  // Whether the thread ran until now. A kind does this first when it ends.
  bool Stop();
  // All that the thread does.
  virtual void Work();
  // What Post and Send do; `push` hands the message to a process, and says whether it waits for it.
  void PostAs(const MessageId& id, Posted posted);
  using PushMessage = std::function<bool(SocketPeer& peer, const Receiver& receiver, int64_t bytes,
                                         const std::shared_ptr<Outgoing>& message)>;
  void SendAs(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done, const PushMessage& push);
  // From now on Await hears of it under this key.
  Status Watch(uint64_t key, int socket);
  Status Gone(uint32_t process, const std::string& why) const;
  // Waits a moment for the end of the process's last connection, if there was one, to be over. An error: it is not, or
  // there is one still.
  Status AwaitEnd(Lock& lock, uint32_t process);
  void Finish(std::shared_ptr<Outgoing> message);
  void RunCallbacks(Lock& lock);
  // So that whoever serves sees what has changed.
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
  bool resumes_ = false;  // peers that wait may go on
  bool stopping_ = false;
  std::thread::id server_;  // the thread that reads the sockets; none: it pauses

 private:
  // Null: it has never been connected.
  virtual SocketPeer* PeerOf(uint32_t process) = 0;
  virtual std::vector<SocketPeer*> Peers() = 0;
  // Why a process that is not gone counts as silent, since the last look; none: it does not.
  virtual std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) = 0;
  virtual void Write(Lock& lock, SocketPeer& peer) = 0;
  virtual void Fail(Lock& lock, SocketPeer& peer, const Status& why) = 0;
  // Of those that wait.
  virtual void Resume(Lock& lock) = 0;
  // Something is to be written that only who serves will write.
  virtual bool HasMore() const = 0;
  // Takes what the sockets bring, or what is due, within the limit.
  virtual void Await(Lock& lock, std::chrono::nanoseconds limit) = 0;
  // The thread serves nobody for so long at most.
  virtual void OnPause(std::chrono::nanoseconds /*limit*/) {}
  // Sends what is queued, and the goodbyes.
  virtual void Depart(Lock& lock) = 0;

  Result<SocketPeer*> Find(uint32_t process);
  void Queue(SocketPeer& peer);
  void WriteQueued(Lock& lock);
  void RunOrWake(Lock& lock, bool was_idle);

  // Who serves (socket_progress.cc).
  void Pause(Lock& lock);
  bool MustServe() const;
  void RunDue(Lock& lock);
  void FindSilent(Lock& lock);

  int wake_ = -1;
  std::vector<SocketPeer*> queued_;
  bool has_woken_ = false;
  std::condition_variable changed_;
  int64_t expected_ = 0;  // calls; for a moment fewer than none, as one may end before it is expected
  Clock::time_point quiet_since_;
  Clock::time_point looked_ = Clock::now();  // for silent hosts
  Yielding yielding_;                        // of the thread that helps
  std::thread thread_;
};

}  // namespace jaxcomm

// A transport over TCP: one connection to each of the other processes.
//
//   Result<std::unique_ptr<TcpTransport>> made = TcpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, socket);   // connected to process 3 and authenticated; ours from now on
//
// One thread reads all connections, sleeps when there is nothing to do but a look each second, and runs the callbacks,
// unless another one helps it. For a moment after the last call that somebody waits for, it leaves what comes. Flush
// sends from the thread that calls it, and what the kernel does not take then, that thread sends. The memory of a
// large message is read until it has left; a small one is copied and counts as sent at once. Views are only given of
// messages that came early; holding one costs memory, and keeps nobody waiting. Cancel destroys the callbacks that it
// drops with a lock held: what they own must not call the transport when it is released.
//
// Leave gives what is queued some seconds to get out and says goodbye; then all other processes are gone. So does the
// destructor, but runs no callback any more. Neither may be called from a callback. A process that ends without a
// goodbye is gone, and so is one that sends what does not belong to its connection, or whose host is silent (socket.h).
#pragma once

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
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/callbacks.h"
#include "cc/transport/inbox.h"
#include "cc/transport/tcp/gate.h"
#include "cc/transport/tcp/outbox.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class TcpTransport : public Transport {
 public:
  // `rail`: its name for errors, if there are several.
  static Result<std::unique_ptr<TcpTransport>> Create(uint32_t process, Events* events, std::string rail = "");
  ~TcpTransport() override;

  // Each process once, and again after a Fence. After an error the socket is closed.
  Status AddPeer(uint32_t process, int socket);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  void Cancel(const CallId& call) override;
  void Withdraw(uint32_t process, const MessageId& id) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;
  void Expect() override;
  void EndExpecting() override;
  void Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) override;

  void Leave();

 private:
  struct Peer;
  using Lock = std::unique_lock<std::mutex>;

  TcpTransport(uint32_t process, Events* events, std::string rail);
  Status Start();

  static constexpr uint64_t kWake = UINT64_MAX;    // among the events of epoll, beside the processes
  static constexpr std::chrono::seconds kLook{1};  // between two looks at whether hosts answer

  bool Stop();
  Status Connect(uint32_t process, int socket);
  bool IsEnding(uint32_t process) const;
  Result<Peer*> Find(uint32_t process);
  void Queue(Peer& peer);
  void WriteQueued(Lock& lock);
  void Finish(std::shared_ptr<Outgoing> message);
  void RunOrWake(Lock& lock, bool was_idle);

  // Who serves (progress.cc).
  void Work();
  void Pause(Lock& lock);
  bool MustServe() const;
  void RunDue(Lock& lock);
  void Await(Lock& lock, std::chrono::milliseconds limit);
  void RunCallbacks(Lock& lock);
  void Wake();

  // One connection (connection.cc).
  void Read(Lock& lock, Peer& peer);
  void FindSilent(Lock& lock);
  void Write(Lock& lock, Peer& peer);
  void CheckReader(Lock& lock, Peer& peer, const Status& status);
  void Fail(Lock& lock, Peer& peer, const Status& why);
  void Close(Peer& peer, const Status& why);
  void Depart(Lock& lock);
  bool HasDeparted(Lock& lock, Peer& peer);
  Status Gone(uint32_t process, const std::string& why) const;
  void SetInterest(Peer& peer);

  const uint32_t process_;
  Events* const events_;
  const std::string rail_;
  int epoll_ = -1, wake_ = -1;

  std::mutex mutex_;  // of all below; not held in system calls that carry messages, nor in callbacks
  Gate gate_;
  Callbacks callbacks_;
  Inbox inbox_;
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> queued_;  // to be flushed
  bool has_woken_ = false, resumes_ = false, stopping_ = false;
  std::thread::id server_;  // the thread that reads the connections; none: it pauses
  std::condition_variable changed_;
  int64_t expected_ = 0;  // calls; for a moment fewer than none, as one may end before it is expected
  std::chrono::steady_clock::time_point quiet_since_;
  std::thread thread_;
};

}  // namespace jaxcomm

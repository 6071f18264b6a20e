// A transport over UDP: packets that are sent again until they have come, at a rate that follows their delay.
//
//   Result<std::unique_ptr<UdpTransport>> made = UdpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, path);   // the sockets are ours from now on
//
// Lost packets cost the time of one round trip, whatever else is under way; none makes others wait. Threads, callbacks,
// views, Leave and who helps are as with TcpTransport, with two differences: the memory of a large message is read
// until the other side has answered that it has all of it, and notices may overtake messages.
//
// Beside its packets each process keeps a TCP connection to each other one on which nothing is sent: by it the kernels
// tell that a process has ended, or its host is silent (tcp/socket.h). A process that answers no packet while its
// connection lives may be stopped or slow; how long to wait for it is for deadlines to say. Packets that do not bear
// the tag of the path's key are counted and dropped, and so are those that have come before.
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
#include "cc/transport/outgoing.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/datagrams.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/siphash.h"

namespace jaxcomm {

// The way to a process, as both sides have agreed on it.
struct UdpPath {
  int connection;  // a TCP socket, connected and authenticated, on which nothing is sent
  int socket;      // a UDP socket, connected
  SipKey sends, receives;
  uint32_t packet_bytes;  // of each packet but the last of a frame
  uint32_t window;        // bytes that may be under way to the process
};

class UdpTransport : public Transport {
 public:
  // What comes over a path and is dropped.
  struct Dropped {
    int64_t forged = 0;    // without the tag of its key
    int64_t repeated = 0;  // has come before
  };

  static constexpr uint32_t kMinPacketBytes = 512, kMaxPacketBytes = 65000;

  static Result<std::unique_ptr<UdpTransport>> Create(uint32_t process, Events* events);
  ~UdpTransport() override;

  // Each process once. After an error the sockets are closed.
  Status AddPeer(uint32_t process, const UdpPath& path);

  void Notify(uint32_t process, std::string_view notice) override;
  void Post(uint32_t process, const MessageId& id, std::vector<Span> spans, bool accepts_view, Received done) override;
  void Send(const std::vector<Receiver>& to, std::vector<ConstSpan> spans, Sent done) override;
  void Flush() override;
  void Cancel(const CallId& call) override;
  void Expect() override;
  void EndExpecting() override;
  void Help(std::chrono::nanoseconds limit, const std::function<bool()>& over) override;

  void Leave();

  Dropped dropped(uint32_t process);

 private:
  struct Peer;
  using Lock = std::unique_lock<std::mutex>;

  UdpTransport(uint32_t process, Events* events);
  Status Start();

  static constexpr uint64_t kWake = UINT64_MAX;  // among the events of epoll, beside the sockets
  static uint64_t KeyOf(uint32_t process, bool is_connection) { return uint64_t{process} << 1 | is_connection; }

  bool Stop();
  Status Watch(uint64_t key, int socket);
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
  void RunTimers(Lock& lock);
  void Await(Lock& lock, std::chrono::nanoseconds limit);
  void RunCallbacks(Lock& lock);
  void Depart(Lock& lock);
  void Wake();

  // One path (path.cc).
  void Read(Lock& lock, Peer& peer);
  Status Take(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);
  Status TakeAnswer(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);
  void Answer(Peer& peer);
  void Probe(Peer& peer);
  void Write(Lock& lock, Peer& peer);
  bool FillBatch(Peer& peer);
  void ReadConnection(Lock& lock, Peer& peer);
  void Fail(Peer& peer, const Status& end);
  static void CloseUnused(Peer& peer);
  void SetInterest(Peer& peer);

  const uint32_t process_;
  Events* const events_;
  int epoll_ = -1, wake_ = -1;
  ReceivedDatagrams received_;  // of the thread that serves

  std::mutex mutex_;  // of all below; not held in system calls that carry packets, nor in callbacks
  Callbacks callbacks_;
  Inbox inbox_;
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> queued_;  // to be flushed
  bool has_woken_ = false, resumes_ = false, stopping_ = false;
  std::thread::id server_;    // the thread that reads the sockets; none: it pauses
  int64_t sleeps_until_ = 0;  // the thread that serves, or will
  std::condition_variable changed_;
  int64_t expected_ = 0;  // calls; for a moment fewer than none, as one may end before it is expected
  std::chrono::steady_clock::time_point quiet_since_;
  std::thread thread_;
};

}  // namespace jaxcomm

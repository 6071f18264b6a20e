// A transport over UDP: packets that are sent again until they have come, at a rate that follows their delay.
//
//   Result<std::unique_ptr<UdpTransport>> made = UdpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, path);   // the sockets are ours from now on
//   made.value()->Fence(3, why); status = made.value()->AddPeer(3, new_path);   // with new keys
//
// A lost packet costs one round trip, and delays no other packet. Threads, callbacks, views, Leave and Help are as with
// TcpTransport, with two differences: the memory of a large message is read until the receiver has confirmed all of it,
// and notices may overtake messages.
//
// Each process also keeps a TCP connection to each other process, which carries no message: it shows that a process has
// ended, or that its host is silent (socket.h); if several rails lead to a process, bytes go over it that the other
// kernel answers even if its process is stopped. A process that answers no packet may be stopped or slow, which is left
// to deadlines, or its packets get lost: it is asked over the connection, too, and answers there behind all packets
// that it can read. If it answers only there for half of `silence`, or a tenth on one rail of several, the path has
// ended: some networks pass TCP and no UDP. A path has also ended if long packets get lost for `silence` while shorter
// ones come. Packets without the tag of the path's key are counted and dropped, and so are repeated ones.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/lossy_transport.h"
#include "cc/transport/socket.h"
#include "cc/transport/socket_transport.h"
#include "cc/transport/transport.h"
#include "cc/transport/udp/datagrams.h"
#include "cc/transport/udp/packet.h"
#include "cc/transport/udp/siphash.h"

namespace jaxcomm {

// The path to a process, which both sides have agreed on.
struct UdpPath {
  int connection;  // a TCP socket, connected and authenticated, which carries only kAsk and kHere
  int socket;      // a UDP socket, connected
  SipKey sends, receives;
  uint32_t packet_bytes;  // of each packet but the last of a frame
  uint32_t window;        // bytes that may be under way to the process
};

// Bytes that ask the host's kernel and the process for an answer, and the answer of the process.
constexpr std::byte kAsk{'?'}, kHere{'!'};

class UdpTransport : public SocketTransport, public LossyTransport {
 public:
  // Packets that came over a path and were dropped.
  struct Dropped {
    int64_t forged = 0;    // without the tag of its key
    int64_t repeated = 0;  // came again
  };

  static constexpr uint32_t kMinPacketBytes = 512, kMaxPacketBytes = 65000;

  // `rail`: its name for errors, if there are several.
  static Result<std::unique_ptr<UdpTransport>> Create(uint32_t process, Events* events, std::string rail = "",
                                                      std::chrono::nanoseconds silence = kSilence);
  ~UdpTransport() override;

  // Each process once, and again after a Fence. After an error the sockets are closed.
  Status AddPeer(uint32_t process, const UdpPath& path);

  LossyTransport* lossy() override { return this; }
  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, int64_t may_lose,
                 ReceivedLossy done) override;
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important, int64_t may_lose,
                 Sent done) override;
  void Cancel(const CallId& call) override;
  void Withdraw(uint32_t process, const MessageId& id) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;

  void Leave();

  Dropped dropped(uint32_t process);

 private:
  struct Peer;

  UdpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);

  static uint64_t KeyOf(uint32_t process, bool is_connection) { return uint64_t{process} << 1 | is_connection; }

  Status Connect(Lock& lock, uint32_t process, const UdpPath& path, const DatagramOptions& datagrams);
  SocketPeer* PeerOf(uint32_t process) override;
  std::vector<SocketPeer*> Peers() override;
  std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) override;

  // Progress (progress.cc).
  void Work() override;
  void OnPause(std::chrono::nanoseconds limit) override;
  bool HasMore() const override;
  void Resume(Lock& lock) override;
  void RunTimers(Lock& lock);
  void Await(Lock& lock, std::chrono::nanoseconds limit) override;
  void Depart(Lock& lock) override;

  // One path (path.cc).
  void Read(Lock& lock, Peer& peer);
  Status Take(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);
  Status TakeAnswer(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);
  void Answer(Peer& peer);
  void Probe(Peer& peer);
  static void AskProcess(Peer& peer);
  void Write(Lock& lock, SocketPeer& peer) override;
  bool FillBatch(Peer& peer);
  void ReadConnection(Lock& lock, Peer& peer);
  void Fail(Lock& lock, SocketPeer& peer, const Status& end) override;
  void End(Peer& peer, const Status& why);
  static void CloseUnused(Peer& peer);
  void TakeHere(Lock& lock, Peer& peer);
  void SetInterest(Peer& peer);

  ReceivedDatagrams received_;  // of the polling thread

  // Of the base's lock.
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  int64_t sleeps_until_ = 0;  // the polling thread, or the next one
  int64_t next_batch_ = 0;    // goes then
};

}  // namespace jaxcomm

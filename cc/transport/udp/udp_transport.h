// A transport over UDP. Packets are retransmitted until they arrive. The packet rate follows the delay of the packets.
//
//   Result<std::unique_ptr<UdpTransport>> made = UdpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, path);   // takes ownership of the sockets
//   made.value()->Fence(3, why); status = made.value()->AddPeer(3, new_path);   // with new keys
//
// A lost packet costs one round trip, and delays no other packet. Threads, callbacks, views, Leave and Help work as in
// TcpTransport. There are two differences: the memory of a large message is read until the receiver has acknowledged
// the whole message, and notices may overtake messages.
//
// Each pair of processes also keeps a TCP connection, which carries no messages. The connection shows that a process
// has ended or that its host is silent (socket.h). With several rails, the transport also sends bytes over this
// connection to test the host: the other kernel acknowledges the bytes even if its process is stopped.
//
// If a process acknowledges no packet, it may be stopped or slow, or the network may lose UDP packets. Deadlines handle
// processes that are stopped or slow. To find networks that pass TCP but not UDP, the transport asks the process over
// TCP. The process replies over TCP after it has read all packets that have arrived. A path ends if the process replies
// only over TCP for half of `silence`, or for a tenth of `silence` if there are several rails. A path also ends if long
// packets get lost for `silence` while shorter packets arrive. A packet is counted and dropped if it arrived before, or
// if its tag was not made with the path's key.
//
// A process may be reached over several paths, which differ in their source ports, so that switches can send their
// packets over different links (ECMP). Each path has packet numbers, keys, acknowledgements and a packet rate of its
// own. The packets of a message are spread over the paths: among the paths whose rates allow more packets, the path
// with the shortest RTT gets the next packets. A path is silent if its packets are not acknowledged for two timeouts in
// a row while another path works. A silent path gets only probes, and the other paths retransmit its packets. An
// acknowledgement of a silent path is sent over another path. While a path works, the TCP connection may also be
// silent, because it uses a single link.
//
// Messages may have several priorities (Receiver). Packets of a priority wait while packets of an earlier priority
// wait, and switches may send them in this order, too: each priority has a DSCP of its own.
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

namespace jaxcomm {

// One path to a process.
struct UdpSocket {
  int socket;  // a UDP socket, connected
  PacketKeys keys;
};

// The one or more paths to a process. Both processes have agreed on the values.
struct UdpPath {
  int connection;                  // a TCP socket, connected and authenticated, which carries only kAsk and kHere
  std::vector<UdpSocket> sockets;  // one for each path, in the order of the other process's sockets; same kind of seal
  uint32_t packet_bytes;           // size of each packet, except that a frame's last packet may be smaller
  uint32_t window;                 // bytes that may be in flight to the process on each path
  uint32_t priorities = 1;         // of the packets that this process sends
};

// Returns all sockets of a path, which AddPeer closes after an error.
std::vector<int> SocketsOf(const UdpPath& path);

// The other kernel acknowledges kAsk, and the other process replies to kAsk with kHere.
constexpr std::byte kAsk{'?'}, kHere{'!'};

class UdpTransport : public SocketTransport, public LossyTransport {
 public:
  // Numbers of packets that arrived over a path and were dropped.
  struct Dropped {
    int64_t forged = 0;    // the tag was not made with the path's key, or the packet is too long
    int64_t repeated = 0;  // the packet arrived before
  };

  static constexpr uint32_t kMinPacketBytes = 512, kMaxPacketBytes = 65000;
  static constexpr size_t kMaxPaths = 64;

  // `rail`: the rail's name in error texts; empty if there is only one rail.
  static Result<std::unique_ptr<UdpTransport>> Create(uint32_t process, Events* events, std::string rail = "",
                                                      std::chrono::nanoseconds silence = kSilence);
  ~UdpTransport() override;

  // Must be called once for each process, and may be called again after a Fence. Closes the sockets after an error.
  Status AddPeer(uint32_t process, const UdpPath& path);

  LossyTransport* lossy() override { return this; }
  void PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                 ReceivedLossy done) override;
  void SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                 const LossLimit& limit, Sent done) override;
  void Cancel(const CallId& call) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;

  void Leave();

  Dropped dropped(uint32_t process);

 private:
  struct Path;
  struct Peer;

  UdpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);

  // The epoll key of a socket. `socket`: the number of the path, or kConnection.
  static uint64_t KeyOf(uint32_t process, size_t socket) { return uint64_t{process} << 8 | socket; }
  static constexpr size_t kConnection = 255;

  Status Connect(Lock& lock, uint32_t process, const UdpPath& path, const std::vector<DatagramOptions>& datagrams,
                 std::vector<PacketSeals> seals);
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
  void Read(Lock& lock, Peer& peer, size_t number);
  Status Take(Peer& peer, size_t number, const PacketHeader& header, const std::byte* bytes, size_t size,
              int64_t arrived);
  Status TakeAnswer(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size, int64_t arrived);
  void Answer(Peer& peer, size_t number);
  static void Probe(Peer& peer, size_t number);
  static void Probe(Peer& peer, size_t number, uint32_t priority);
  static void ProbeIfOwed(Peer& peer);
  void TakeTimeout(Peer& peer, size_t number);
  static void AskProcess(Peer& peer);
  void Write(Lock& lock, SocketPeer& peer) override;
  static std::optional<size_t> NextPath(Peer& peer, int64_t now);
  bool FillBatch(Peer& peer, size_t number);
  void ReadConnection(Lock& lock, Peer& peer);
  void Fail(Lock& lock, SocketPeer& peer, const Status& end) override;
  void End(Peer& peer, const Status& why);
  static void CloseUnused(Peer& peer);
  void TakeHere(Lock& lock, Peer& peer);
  void SetInterest(Peer& peer, size_t number);

  ReceivedDatagrams received_;  // used by the polling thread only

  // The base class's mutex_ guards the members below.
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  int64_t sleeps_until_ = 0;  // when the polling thread wakes up; during a pause: when polling resumes
  int64_t next_batch_ = 0;    // time at which the next batch is due
};

}  // namespace jaxcomm

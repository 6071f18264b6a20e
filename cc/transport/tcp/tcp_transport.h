// A transport over TCP: one connection to each other process.
//
//   Result<std::unique_ptr<TcpTransport>> made = TcpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, {socket});   // takes a connected, authenticated socket
//   Status status = made.value()->AddPeer(4, {socket, keys});   // encrypts everything that goes over the socket
//
// socket_transport.h describes threads, callbacks and Help. The spans of a large message are read until the message has
// been sent. Only early messages are delivered as views. A held view costs memory, but blocks no sender.
//
// Leave sends the queued frames and a goodbye. This takes a few seconds at most. After Leave all other processes count
// as gone. The destructor does the same, but runs no callback. Callbacks must call neither Leave nor the destructor. A
// process also counts as gone if it ends without a goodbye, breaks the protocol, or has a silent host (socket.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/crypto/aead.h"
#include "cc/transport/socket.h"
#include "cc/transport/socket_transport.h"
#include "cc/transport/tcp/gate.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

struct Records;

// The connection with a process. If `keys` is set, the bytes are encrypted (records.h). Both processes have agreed on
// the keys.
struct TcpPath {
  int socket;
  std::optional<CipherKeys> keys = std::nullopt;
};

class TcpTransport : public SocketTransport {
 public:
  // `rail`: the rail's name in error texts, if there are several rails.
  static Result<std::unique_ptr<TcpTransport>> Create(uint32_t process, Events* events, std::string rail = "",
                                                      std::chrono::nanoseconds silence = kSilence);
  ~TcpTransport() override;

  // Takes ownership of the socket, and closes it after an error. A process may be added once, and again after a Fence.
  Status AddPeer(uint32_t process, const TcpPath& path);

  void Cancel(const CallId& call) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;

  void Leave();

 private:
  struct Peer;

  TcpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);

  Status Connect(Lock& lock, uint32_t process, int socket, std::unique_ptr<Records> records);
  SocketPeer* PeerOf(uint32_t process) override;
  std::vector<SocketPeer*> Peers() override;
  std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) override;
  void Resume(Lock& lock) override;
  bool HasMore() const override;
  void Await(Lock& lock, std::chrono::nanoseconds limit) override;

  // One connection (connection.cc).
  void Read(Lock& lock, Peer& peer);
  void Write(Lock& lock, SocketPeer& peer) override;
  void CheckReader(Lock& lock, Peer& peer, const Status& status);
  void Fail(Lock& lock, SocketPeer& peer, const Status& why) override;
  void Close(Peer& peer, const Status& why);
  void Depart(Lock& lock) override;
  bool HasDeparted(Lock& lock, Peer& peer);
  void SetInterest(Peer& peer);

  // The base class's mutex_ guards both members. A thread that waits at the gate releases mutex_ meanwhile.
  Gate gate_;
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
};

}  // namespace jaxcomm

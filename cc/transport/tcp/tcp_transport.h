// A transport over TCP: one connection to each of the other processes.
//
//   Result<std::unique_ptr<TcpTransport>> made = TcpTransport::Create(process, &events);
//   Status status = made.value()->AddPeer(3, socket);   // connected to process 3 and authenticated; ours from now on
//
// socket_transport.h describes threads, callbacks and Help. The memory of a large message is read until it has
// left. Only messages that came early are given as views; holding one costs memory, and delays no sender.
//
// Leave gives queued frames some seconds to get out and sends a goodbye; then all other processes are gone. So does the
// destructor, but runs no callback any more. Neither may be called from a callback. A process that ends without a
// goodbye is gone, and so is one that breaks the protocol, or whose host is silent (socket.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/socket.h"
#include "cc/transport/socket_transport.h"
#include "cc/transport/tcp/gate.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

class TcpTransport : public SocketTransport {
 public:
  // `rail`: its name for errors, if there are several.
  static Result<std::unique_ptr<TcpTransport>> Create(uint32_t process, Events* events, std::string rail = "",
                                                      std::chrono::nanoseconds silence = kSilence);
  ~TcpTransport() override;

  // Each process once, and again after a Fence. After an error the socket is closed.
  Status AddPeer(uint32_t process, int socket);

  void Cancel(const CallId& call) override;
  void Withdraw(uint32_t process, const MessageId& id) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;

  void Leave();

 private:
  struct Peer;

  TcpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence);

  Status Connect(Lock& lock, uint32_t process, int socket);
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

  // Of the base's lock.
  Gate gate_;
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
};

}  // namespace jaxcomm

// A transport over libfabric, for networks such as InfiniBand, Omni-Path, Slingshot and EFA.
//
//   auto endpoint = Endpoint::Open({"verbs", "mlx5_0"}, FabricTransport::Operations(processes));
//   auto made = FabricTransport::Create(process, processes, &events, std::move(endpoint.value()));
//   made.value()->AddPeer(3, {connection, address, sends, receives});   // agreed over the authenticated connection
//
// libfabric reads and stores only the slots of an arena (arena.h). A message is copied into a slot, sent as one tagged
// message, and arrives in a slot of the receiver. The receiver passes the slot on as a view, or copies its bytes under
// the lock. After Cancel and Fence therefore no byte arrives in a caller's memory, even if libfabric still moves bytes.
//
// The window limits the number of frames that a process has sent to another process and whose slots the receiver has
// not yet freed. Each frame carries the counts of the arrived frames and of the freed slots. A provider need not keep
// frames in order or acknowledge them. A TCP connection beside the path carries no messages. If the other process ends,
// the connection ends, and so does the path. The bytes kAsk and kHere on the connection show that the other process
// runs.
//
// socket_transport.h describes threads, callbacks and Help. Leave works as in TcpTransport.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/transport/crypto/siphash.h"
#include "cc/transport/fabric/arena.h"
#include "cc/transport/fabric/endpoint.h"
#include "cc/transport/socket.h"
#include "cc/transport/socket_transport.h"
#include "cc/transport/transport.h"

namespace jaxcomm {

// The path to a process. Both processes have agreed on the keys.
struct FabricPath {
  int connection = -1;  // a TCP socket, connected and authenticated
  std::string address;  // address of the process's endpoint
  SipKey sends{}, receives{};
};

class FabricTransport : public SocketTransport {
 public:
  // Returns the number of operations for which an endpoint needs room.
  static size_t Operations(uint32_t processes);

  // `processes`: the number of processes in the job, the same in all of them. `rail`: the rail's name in error texts;
  // empty if there is only one rail.
  static Result<std::unique_ptr<FabricTransport>> Create(uint32_t process, uint32_t processes, Events* events,
                                                         std::unique_ptr<Endpoint> endpoint, std::string rail = "",
                                                         std::chrono::nanoseconds silence = kSilence);
  ~FabricTransport() override;

  // Must not be called after Leave.
  const Domain& domain() const { return endpoint_->domain(); }

  // Takes ownership of the connection. Must be called once for each process, and may be called again after a Fence. The
  // first frame of a path is a trial of full size. If `trial` is not 0, this function waits until the trial has been
  // acknowledged, and ends the path if that takes longer than `trial`.
  Status AddPeer(uint32_t process, const FabricPath& path, std::chrono::nanoseconds trial = {});

  void Cancel(const CallId& call) override;
  void Fence(uint32_t process, const Status& why) override;
  SendProgress ProgressTo(uint32_t process) override;
  bool MayKeep(uint32_t process) override;

  void Leave();

  // Returns how many frames from the process were dropped because their tag was not made with the key of the path, or
  // because they had arrived before.
  int64_t forged(uint32_t process);

 private:
  struct Peer;
  using Windows = std::array<uint32_t, kFrameSizes>;

  // The epoll keys besides kWake and the numbers of processes.
  static constexpr uint64_t kCompleted = UINT64_MAX - 1, kReleased = UINT64_MAX - 2;

  FabricTransport(uint32_t process, uint32_t processes, Events* events, std::unique_ptr<Endpoint> endpoint,
                  std::shared_ptr<Arena> arena, std::string rail, std::chrono::nanoseconds silence);

  static Windows WindowsOf(uint32_t processes);
  static Arena::Counts SlotsOf(uint32_t processes);
  Status Open();
  void CloseEndpoint();
  Status Connect(Lock& lock, uint32_t process, const FabricPath& path);
  Status AwaitTrial(Lock& lock, Peer& peer, std::chrono::nanoseconds limit);
  SocketPeer* PeerOf(uint32_t process) override;
  std::vector<SocketPeer*> Peers() override;
  std::optional<std::string> WhySilent(SocketPeer& peer, std::chrono::nanoseconds since) override;

  // Progress (progress.cc).
  void Resume(Lock& lock) override;
  bool HasMore() const override;
  void Await(Lock& lock, std::chrono::nanoseconds limit) override;
  bool HasEvent() override;
  std::chrono::nanoseconds SleepLimit() const;
  int Sleep(Lock& lock, std::chrono::nanoseconds limit, epoll_event* events);
  void Progress(Lock& lock);
  bool Drain(Lock& lock);
  void Receive(Slot* slot);
  void ReceiveAgain();
  void Depart(Lock& lock) override;

  // One path (path.cc).
  void Write(Lock& lock, SocketPeer& peer) override;
  void WriteLane(Lock& lock, Peer& peer, FrameSize size);
  bool SendFrame(Lock& lock, Peer& peer, Slot* slot, uint32_t number, size_t bytes);
  void Report(Lock& lock, Peer& peer);
  void Take(Lock& lock, Slot* slot, size_t bytes);
  Status TakeFrame(Peer& peer, Slot* slot);
  Status TakeMessage(Peer& peer, Slot* slot, const Header& header);
  void Free(Peer& peer, Slot* slot);
  // Returns the open path that the slot belongs to, or nullptr.
  Peer* PathOf(const Slot& slot);
  void EndSend(Lock& lock, Slot* slot, int error);
  void ReadConnection(Lock& lock, Peer& peer);
  void Ask(Peer& peer);
  void Fail(Lock& lock, SocketPeer& peer, const Status& end) override;
  void End(Peer& peer, const Status& why);

  // The base class's mutex_ guards the members below.
  const Windows windows_;
  std::unique_ptr<Endpoint> endpoint_;  // null after Leave
  std::shared_ptr<Arena> arena_;        // views of received frames also own the arena
  void* described_ = nullptr;           // libfabric's descriptor of the arena
  std::map<uint32_t, std::unique_ptr<Peer>> peers_;
  uint64_t paths_ = 0;             // number of paths added so far
  std::vector<Slot*> to_receive_;  // slots into which libfabric accepts no receive for now
  bool is_refused_ = false;        // whether libfabric accepts no frame for now
  bool woke_in_vain_ = false;      // whether the descriptor reported a completion that did not exist
  int refusals_ = 0;               // number of successive polls in which libfabric accepted no frame
};

}  // namespace jaxcomm

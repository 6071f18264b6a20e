#include "cc/transport/udp/udp_transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "cc/base/own_descriptors.h"
#include "cc/transport/socket.h"
#include "cc/transport/udp/peer.h"

namespace jaxcomm {

Result<std::unique_ptr<UdpTransport>> UdpTransport::Create(uint32_t process, Events* events, std::string rail,
                                                           std::chrono::nanoseconds silence) {
  std::unique_ptr<UdpTransport> transport(new UdpTransport(process, events, std::move(rail), silence));
  Status status = transport->Start("UDP");
  if (!status.ok()) return status;
  return transport;
}

UdpTransport::UdpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence)
    : SocketTransport(process, events, std::move(rail), silence) {}

UdpTransport::~UdpTransport() {
  Stop();
  for (const auto& [process, peer] : peers_) {
    if (peer->path.connection < 0) continue;
    for (const int socket : SocketsOf(peer->path)) CloseOwn(socket);
  }
}

std::vector<int> SocketsOf(const UdpPath& path) {
  std::vector<int> sockets = {path.connection};
  for (const UdpSocket& each : path.sockets) sockets.push_back(each.socket);
  return sockets;
}

void UdpTransport::Leave() {
  if (!Stop()) return;
  Lock lock(mutex_);
  for (const auto& [process, peer] : peers_) Fail(lock, *peer, Status());  // Fail sets the reason: this process left
  stopping_ = false;
  RunCallbacks(lock);
}

Status UdpTransport::AddPeer(uint32_t process, const UdpPath& path) {
  for (const int socket : SocketsOf(path)) CloseInChildren(socket);
  Status status = PrepareSocket(path.connection);
  if (status.ok() && (path.sockets.empty() || path.sockets.size() > kMaxPaths)) {
    status = InvalidArgument(std::to_string(path.sockets.size()) + " paths; 1 to " + std::to_string(kMaxPaths) +
                             " are allowed");
  }
  if (status.ok() && (path.priorities == 0 || path.priorities > TrafficClass::kQueues)) {
    status = InvalidArgument(std::to_string(path.priorities) + " priorities; 1 to " +
                             std::to_string(TrafficClass::kQueues) + " are allowed");
  }
  if (status.ok() && (path.packet_bytes < kMinPacketBytes || path.packet_bytes > kMaxPacketBytes)) {
    status =
        InvalidArgument("packets of " + std::to_string(path.packet_bytes) + " bytes; " +
                        std::to_string(kMinPacketBytes) + " to " + std::to_string(kMaxPacketBytes) + " are allowed");
  }
  std::vector<DatagramOptions> datagrams(path.sockets.size());
  std::vector<PacketSeals> seals;
  for (size_t i = 0; i < path.sockets.size() && status.ok(); ++i) {
    status = PrepareDatagrams(path.sockets[i].socket, &datagrams[i]);
    Result<PacketSeals> made = PacketSeals::Make(path.sockets[i].keys);
    if (status.ok()) status = made.status();
    if (status.ok()) seals.push_back(std::move(made.value()));
  }
  if (status.ok()) {
    Lock lock(mutex_);
    status = process == process_ ? InvalidArgument("it is this process")
                                 : Connect(lock, process, path, datagrams, std::move(seals));
    if (status.ok()) return status;
  }
  for (const int socket : SocketsOf(path)) CloseOwn(socket);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
}

Status UdpTransport::Connect(Lock& lock, uint32_t process, const UdpPath& path,
                             const std::vector<DatagramOptions>& datagrams, std::vector<PacketSeals> seals) {
  if (Status status = AwaitEnd(lock, process); !status.ok()) return status;
  std::unique_ptr<Peer>& peer = peers_[process];
  if (peer) {
    peer->Restart(path, datagrams, &inbox_, std::move(seals));
  } else {
    peer = std::make_unique<Peer>(process, path, datagrams, &inbox_, std::move(seals));
  }
  if (peer->paths.size() > 1) {
    // The switches may send the connection over a link that fails while other links carry packets. Unanswered keepalive
    // probes would then end the connection.
    const int off = 0;
    setsockopt(path.connection, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off));
  }
  peer->gone = Watch(KeyOf(process, kConnection), path.connection);
  for (size_t i = 0; i < peer->paths.size() && peer->gone.ok(); ++i) {
    peer->gone = Watch(KeyOf(process, i), peer->paths[i].ends.socket);
  }
  if (!peer->gone.ok()) peer->path.connection = -1;  // the caller closes the sockets
  return peer->gone;
}

UdpTransport::Dropped UdpTransport::dropped(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return Dropped();
  return {found->second->forged, found->second->assembler.duplicates()};
}

void UdpTransport::PostLossy(uint32_t process, const MessageId& id, std::vector<Span> spans, const LossLimit& limit,
                             ReceivedLossy done) {
  auto loss = std::make_shared<Posted::Loss>(Posted::Loss{limit, {}});
  Received received = [loss, done = std::move(done)](const Status& status, std::shared_ptr<const std::byte> view) {
    done(status, std::move(view), loss->lost);
  };
  PostAs(id, {process, std::move(spans), 0, /*accepts_view=*/false, std::move(received), loss});
}

void UdpTransport::SendLossy(const Receiver& to, std::vector<ConstSpan> spans, const std::vector<bool>& important,
                             const LossLimit& limit, Sent done) {
  if (spans.size() > LossyTransport::kMaxSpans) {
    return done(InvalidArgument("a lossy message of " + std::to_string(spans.size()) + " spans, more than " +
                                std::to_string(LossyTransport::kMaxSpans)));
  }
  SendAs({to}, std::move(spans), std::move(done),
         [&](SocketPeer& peer, const Receiver& receiver, int64_t, const std::shared_ptr<Outgoing>& message) {
           static_cast<Peer&>(peer).queue.PushLossy(receiver.id, important, limit, message, receiver.priority);
           return true;
         });
}

void UdpTransport::Cancel(const CallId& call) {
  Lock lock(mutex_);
  inbox_.Cancel(call);
  for (const auto& [process, peer] : peers_) {
    peer->assembler.Cancel(call);
    peer->queue.Cancel(call);
    if (peer->gone.ok() && peer->assembler.waits()) resumes_ = true;
  }
  if (resumes_) Wake();
}

// Unlike TcpTransport::Fence, this function needs no Gate: bytes of messages are stored and read only under the lock.
void UdpTransport::Fence(uint32_t process, const Status& why) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  if (peer.gone.ok()) {
    ResetAtClose(peer.path.connection);
    End(peer, why);
    CloseUnused(peer);
  }
  peer.assembler.TakeArrivals();
  inbox_.Drop(process);
  if (!callbacks_.empty()) Wake();  // AddPeer waits for the callbacks of unsent messages
}

// Counts acknowledgements on the TCP connection as progress, too. If no packet is acknowledged, the process or the
// local polling thread may be stopped or busy, but the process's host still acknowledges bytes on the TCP connection.
SendProgress UdpTransport::ProgressTo(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end() || !found->second->gone.ok()) return {};
  Peer& peer = *found->second;
  const bool has_room = peer.held_until <= NowNanoseconds();
  const auto under_way = has_room ? static_cast<uint32_t>(peer.under_way()) : 0;
  const bool progresses = std::exchange(peer.reported_confirmed, peer.confirmed) != peer.confirmed;
  if (under_way > 0 && !progresses) send(peer.path.connection, &kAsk, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (peer.loses_long()) return {peer.reported, /*unanswered=*/1, /*repeats=*/true};
  const SendProgress host = ProgressOf(peer.path.connection);
  peer.reported = peer.confirmed + host.confirmed;
  return {peer.reported, under_way > 0 ? under_way + host.unanswered : 0, host.repeats};
}

std::vector<SocketPeer*> UdpTransport::Peers() {
  std::vector<SocketPeer*> peers;
  for (const auto& [process, peer] : peers_) peers.push_back(peer.get());
  return peers;
}

std::optional<std::string> UdpTransport::WhySilent(SocketPeer& its, std::chrono::nanoseconds since) {
  Peer& peer = static_cast<Peer&>(its);
  std::optional<std::string> why = peer.watch.Look(peer.path.connection, since, silence_);
  if (peer.paths.size() > 1) {
    const bool is_confirmed = std::exchange(peer.watched_confirmed, peer.confirmed) != peer.confirmed;
    if (why && is_confirmed) why.reset();
    for (size_t i = 0; i < peer.paths.size() && why; ++i) {
      if (!peer.writing && !peer.queue.is_under_way(i)) Probe(peer, i);
    }
    send(peer.path.connection, &kAsk, 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // in place of a keepalive probe
  }
  if (why) return why;
  if (!peer.loses_long()) return std::nullopt;
  const auto bytes =
      static_cast<uint32_t>(kPacketHeaderBytes + peer.lost_bytes + peer.paths[0].seals.packets.trailer_bytes());
  return DescribeLongLost(bytes, PeerAddress(peer.path.connection), silence_);
}

SocketPeer* UdpTransport::PeerOf(uint32_t process) {
  const auto found = peers_.find(process);
  return found == peers_.end() ? nullptr : found->second.get();
}

}  // namespace jaxcomm

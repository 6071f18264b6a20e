#include "cc/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "cc/base/own_descriptors.h"
#include "cc/transport/socket.h"
#include "cc/transport/tcp/peer.h"

namespace jaxcomm {

Result<std::unique_ptr<TcpTransport>> TcpTransport::Create(uint32_t process, Events* events, std::string rail,
                                                           std::chrono::nanoseconds silence) {
  std::unique_ptr<TcpTransport> transport(new TcpTransport(process, events, std::move(rail), silence));
  Status status = transport->Start("TCP");
  if (!status.ok()) return status;
  return transport;
}

TcpTransport::TcpTransport(uint32_t process, Events* events, std::string rail, std::chrono::nanoseconds silence)
    : SocketTransport(process, events, std::move(rail), silence) {}

TcpTransport::~TcpTransport() {
  Stop();
  for (const auto& [process, peer] : peers_) {
    CloseOwn(peer->socket);
  }
}

void TcpTransport::Leave() {
  if (!Stop()) return;
  Lock lock(mutex_);
  stopping_ = false;
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok()) continue;
    peer->left = true;
    Fail(lock, *peer, Status(Code::kInternal, "this process has left the job"));
  }
  RunCallbacks(lock);
}

Status TcpTransport::AddPeer(uint32_t process, const TcpPath& path) {
  CloseInChildren(path.socket);
  Status status = PrepareSocket(path.socket);
  std::unique_ptr<Records> records;
  if (status.ok() && path.keys) {
    Result<std::unique_ptr<Records>> made = Records::Make(*path.keys);
    status = made.status();
    if (made.ok()) records = std::move(made.value());
  }
  if (status.ok()) {
    Lock lock(mutex_);
    status = process == process_ ? InvalidArgument("it is this process")
                                 : Connect(lock, process, path.socket, std::move(records));
    if (status.ok()) return status;
  }
  CloseOwn(path.socket);
  return Status(status.code(), "process " + std::to_string(process) + " cannot be connected: " + status.message());
}

Status TcpTransport::Connect(Lock& lock, uint32_t process, int socket, std::unique_ptr<Records> records) {
  if (Status status = AwaitEnd(lock, process); !status.ok()) return status;
  std::unique_ptr<Peer>& peer = peers_[process];
  if (peer) {
    peer->Restart();
  } else {
    peer = std::make_unique<Peer>(process, &inbox_);
  }
  peer->gone = Watch(process, socket);
  if (!peer->gone.ok()) return peer->gone;
  peer->socket = socket;
  peer->records = std::move(records);
  peer->interest = EPOLLIN;
  return Status();
}

void TcpTransport::Cancel(const CallId& call) {
  Lock lock(mutex_);
  gate_.Close(lock);
  inbox_.Cancel(call);
  for (const auto& [process, peer] : peers_) {
    peer->reader.Cancel(call);
    peer->outbox.Cancel(call);
    if (peer->reader.waits()) resumes_ = true;
  }
  if (resumes_) Wake();
  gate_.Open();
}

void TcpTransport::Fence(uint32_t process, const Status& why) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  gate_.Close(lock);
  if (peer.gone.ok()) {
    ResetAtClose(peer.socket);  // otherwise the kernel would keep sending bytes that no process reads
    Close(peer, why);
  }
  peer.reader.TakeArrival();
  inbox_.Drop(process);
  gate_.Open();
  if (!callbacks_.empty()) Wake();  // AddPeer waits until the callbacks of unsent messages have run
}

SendProgress TcpTransport::ProgressTo(uint32_t process) {
  Lock lock(mutex_);
  const auto found = peers_.find(process);
  return found != peers_.end() && found->second->gone.ok() ? ProgressOf(found->second->socket) : SendProgress();
}

SocketPeer* TcpTransport::PeerOf(uint32_t process) {
  const auto found = peers_.find(process);
  return found == peers_.end() ? nullptr : found->second.get();
}

std::vector<SocketPeer*> TcpTransport::Peers() {
  std::vector<SocketPeer*> peers;
  for (const auto& [process, peer] : peers_) peers.push_back(peer.get());
  return peers;
}

std::optional<std::string> TcpTransport::WhySilent(SocketPeer& its, std::chrono::nanoseconds since) {
  Peer& peer = static_cast<Peer&>(its);
  return peer.watch.Look(peer.socket, since, silence_);
}

void TcpTransport::Resume(Lock& lock) {
  for (const auto& [process, peer] : peers_) {
    if (!peer->gone.ok() || !peer->waits()) continue;
    CheckReader(lock, *peer, peer->reader.Resume());
    // No event reports bytes that have already been read from the socket.
    if (peer->gone.ok() && !peer->waits() && peer->has_more()) Read(lock, *peer);
  }
}

bool TcpTransport::HasMore() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& entry) { return entry.second->gone.ok() && entry.second->blocked; });
}

void TcpTransport::Await(Lock& lock, std::chrono::nanoseconds limit) {
  epoll_event events[64];
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  lock.unlock();
  const int count = epoll_wait(epoll_, events, 64, static_cast<int>(milliseconds));
  lock.lock();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWake) {
      Rearm();
      continue;
    }
    Peer& peer = *peers_.at(static_cast<uint32_t>(events[i].data.u64));
    if (events[i].events & EPOLLOUT) {
      peer.blocked = false;
      Write(lock, peer);
      SetInterest(peer);
    }
    if (events[i].events & ~EPOLLOUT) Read(lock, peer);
  }
}

}  // namespace jaxcomm

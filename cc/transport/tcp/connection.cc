// Reads, writes and ends one connection of TcpTransport.
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/own_descriptors.h"
#include "cc/transport/socket.h"
#include "cc/transport/tcp/peer.h"
#include "cc/transport/tcp/tcp_transport.h"

namespace jaxcomm {
namespace {

constexpr int kReads = 8;  // maximum number of reads from one process before the next process is read
constexpr std::chrono::seconds kDeparture(2);

}  // namespace

void TcpTransport::Read(Lock& lock, Peer& peer) {
  iovec vectors[FrameReader::kMaxVectors];
  for (int i = 0; peer.gone.ok() && !stopping_ && (i < kReads || peer.has_more()); ++i) {
    gate_.Enter(lock);
    // While the reader waits, EPOLLIN is off, so an event means that the connection has ended.
    if (!peer.gone.ok() || peer.reader.waits()) {
      gate_.Leave();
      Fail(lock, peer, Gone(peer.process, DescribeEnd(ECONNRESET)));
      return;
    }
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = peer.reader.Gather(vectors);
    size_t room = 0;
    for (size_t vector = 0; vector < message.msg_iovlen; ++vector) room += vectors[vector].iov_len;
    lock.unlock();
    const ssize_t bytes = peer.Receive(&message);
    const int error = errno;
    lock.lock();
    gate_.Leave();
    if (bytes > 0) {
      CheckReader(lock, peer, peer.reader.Take(static_cast<size_t>(bytes)));
      RunCallbacks(lock);
      if (peer.reader.waits() || (static_cast<size_t>(bytes) < room && !peer.has_more())) return;
    } else if (bytes < 0 && error == EBADMSG) {
      CheckReader(lock, peer, InvalidArgument("bytes that were changed or forged on their way"));
      RunCallbacks(lock);
    } else if (bytes == 0 || (error != EAGAIN && error != EINTR)) {
      Fail(lock, peer, Gone(peer.process, DescribeEnd(bytes == 0 ? peer.write_error : error)));
      RunCallbacks(lock);
    } else {
      return;
    }
  }
}

// Must be called after each Take and Resume of the reader. Ends the connection after an error or a goodbye.
// Otherwise updates the events that epoll reports.
void TcpTransport::CheckReader(Lock& lock, Peer& peer, const Status& status) {
  if (!status.ok()) {
    Fail(lock, peer, CutOff(peer.process, status));
  } else if (peer.reader.at_end()) {
    peer.left = true;
    Fail(lock, peer, Status(Code::kInternal, "process " + std::to_string(peer.process) + " has left"));
  } else {
    SetInterest(peer);
  }
}

void TcpTransport::Write(Lock& lock, SocketPeer& its) {
  Peer& peer = static_cast<Peer&>(its);
  if (peer.writing || peer.blocked) return;  // the writing thread, or the next EPOLLOUT, also writes new frames
  iovec vectors[Outbox::kMaxVectors];
  std::vector<std::shared_ptr<Outgoing>> left;
  peer.writing = true;
  while (peer.gone.ok() && peer.write_error == 0 && !peer.blocked) {
    gate_.Enter(lock);
    if (!peer.gone.ok() || (peer.outbox.empty() && !peer.has_sealed())) {
      gate_.Leave();
      break;
    }
    msghdr message{};
    size_t asked;
    message.msg_iov = vectors;
    message.msg_iovlen = peer.outbox.Gather(vectors, &asked);
    lock.unlock();
    const ssize_t bytes = peer.Send(message);
    const int error = errno;
    lock.lock();
    gate_.Leave();
    if (bytes >= 0) {
      peer.outbox.Advance(static_cast<size_t>(bytes), &left);
      for (std::shared_ptr<Outgoing>& message : left) Finish(std::move(message));
      left.clear();
      peer.blocked = static_cast<size_t>(bytes) < asked || peer.has_sealed();
    } else if (error == EAGAIN) {
      peer.blocked = true;
    } else if (error != EINTR) {
      peer.write_error = error;
    }
  }
  peer.writing = false;
  if (peer.blocked) SetInterest(peer);
  if (!callbacks_.empty() || (peer.blocked && server_ == std::thread::id())) Wake();
}

void TcpTransport::Fail(Lock& lock, SocketPeer& its, const Status& why) {
  Peer& peer = static_cast<Peer&>(its);
  gate_.Close(lock);
  if (peer.gone.ok()) {
    if (peer.silent_looks > 0) ResetAtClose(peer.socket);  // the host is silent, so a FIN would get lost
    shutdown(peer.socket, SHUT_RDWR);
    ReportEnd(peer, why);
    Close(peer, why);
    inbox_.Fail(peer.process, why, peer.reader.TakeArrival());
    Wake();
  }
  gate_.Open();
}

// The gate must be closed.
void TcpTransport::Close(Peer& peer, const Status& why) {
  peer.gone = why;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer.socket, nullptr);
  CloseOwn(std::exchange(peer.socket, -1));
  for (std::shared_ptr<Outgoing>& message : peer.outbox.Clear()) {
    message->status = why;
    Finish(std::move(message));
  }
}

// Sends the queued frames and the goodbye, and waits until the receivers' kernels have acknowledged them. Without the
// wait, bytes could get lost: closing a connection with unread bytes resets the connection, and a reset discards bytes
// in flight.
void TcpTransport::Depart(Lock& lock) {
  const auto deadline = std::chrono::steady_clock::now() + kDeparture;
  for (const auto& [process, peer] : peers_) {
    if (peer->gone.ok()) peer->outbox.PushCopy({FrameType::kGoodbye, 0, MessageId()}, {});
  }
  for (bool all_departed = false; !all_departed && std::chrono::steady_clock::now() < deadline;) {
    all_departed = true;
    for (const auto& [process, peer] : peers_) all_departed &= HasDeparted(lock, *peer);
    // Sleeps instead of waiting for an event, because no event reports acknowledgements, and because an ended
    // connection reports events all the time.
    if (!all_departed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool TcpTransport::HasDeparted(Lock& lock, Peer& peer) {
  if (!peer.gone.ok()) return true;
  std::byte ignored[16 << 10];
  ssize_t bytes;
  do bytes = recv(peer.socket, ignored, sizeof(ignored), MSG_DONTWAIT);
  while (bytes > 0);
  if (bytes == 0 || errno != EAGAIN) return true;
  peer.blocked = false;
  Write(lock, peer);
  int unacknowledged = 0;
  return peer.write_error != 0 || (!peer.writing && peer.outbox.empty() && !peer.has_sealed() &&
                                   ioctl(peer.socket, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0);
}

void TcpTransport::SetInterest(Peer& peer) {
  const uint32_t interest = (peer.reader.waits() ? 0u : EPOLLIN) | (peer.blocked ? EPOLLOUT : 0u);
  if (!peer.gone.ok() || interest == peer.interest) return;
  epoll_event event{};
  event.events = peer.interest = interest;
  event.data.u64 = peer.process;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.socket, &event);
}

}  // namespace jaxcomm

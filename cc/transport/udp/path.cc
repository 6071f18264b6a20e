// Reads, acknowledges, writes and ends one path of UdpTransport.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/own_descriptors.h"
#include "cc/base/text.h"
#include "cc/transport/socket.h"
#include "cc/transport/udp/peer.h"
#include "cc/transport/udp/udp_transport.h"

namespace jaxcomm {
namespace {

constexpr int kReads = 8;                  // maximum number of reads from one process before the next process is read
constexpr int64_t kAnswerDelay = 1000000;  // nanoseconds that an acknowledgement may wait for more packets
constexpr int64_t kHold = 50000000;        // nanoseconds during which a process without room gets only probes
constexpr size_t kMaxBatchPackets = 64;
// The maximum number of batches that Write sends on any thread except the polling thread. Such a thread has other work,
// for example on another rail.
constexpr int kFlushedBatches = 4;
constexpr int kLeastHere = 4;  // minimum number of replies over TCP alone after which a path ends

}  // namespace

void UdpTransport::Read(Lock& lock, Peer& peer) {
  struct Opened {
    PacketHeader header;
    const Datagram* datagram;
  };
  std::vector<Opened> opened;
  const size_t trailer = peer.seals.arrivals.trailer_bytes();
  for (int i = 0; i < kReads && peer.gone.ok(); ++i) {
    ++peer.users;
    lock.unlock();
    const std::vector<Datagram>& datagrams = received_.Receive(peer.path.socket);
    opened.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.size > peer.path.packet_bytes) continue;
      const std::optional<PacketHeader> header = peer.seals.arrivals.Open(datagram.bytes, datagram.size);
      if (header) opened.push_back({*header, &datagram});
    }
    lock.lock();
    --peer.users;
    peer.forged += static_cast<int64_t>(datagrams.size() - opened.size());
    for (const auto& [header, datagram] : opened) {
      if (!peer.gone.ok()) break;
      const Status status = Take(peer, header, datagram->bytes + kPacketHeaderBytes,
                                 datagram->size - kPacketHeaderBytes - trailer, datagram->arrived);
      if (!status.ok()) Fail(lock, peer, CutOff(peer.process, status));
    }
    if (!peer.gone.ok()) break;
    if (peer.assembler.owes_answer_now() || peer.assembler.at_end()) {
      Answer(peer);
    } else if (peer.assembler.owes_answer() && peer.answer_at == 0) {
      peer.answer_at = NowNanoseconds() + kAnswerDelay;
    }
    if (peer.assembler.at_end()) {
      peer.left = true;
      Fail(lock, peer, Status(Code::kInternal, "process " + std::to_string(peer.process) + " has left"));
      break;
    }
    RunCallbacks(lock);
    Write(lock, peer);
    if (!received_.may_have_more()) break;
  }
  CloseUnused(peer);
  RunCallbacks(lock);
}

Status UdpTransport::Take(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size,
                          int64_t arrived) {
  if (header.kind == PacketKind::kAnswer) return TakeAnswer(peer, header, bytes, size, arrived);
  return peer.assembler.Take(header, bytes, size, arrived);
}

Status UdpTransport::TakeAnswer(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size,
                                int64_t arrived) {
  if (size != kAnswerBytes) return InvalidArgument("an answer of " + std::to_string(size) + " bytes");
  std::vector<std::shared_ptr<Outgoing>> done;
  const Result<Answered> answered = peer.queue.Take(header, bytes, &done);
  if (!answered.ok()) return answered.status();
  for (std::shared_ptr<Outgoing>& message : done) Finish(std::move(message));
  peer.NoteLongLost(answered.value());
  const int64_t now = NowNanoseconds();
  peer.held_until = header.asks ? now + kHold : 0;
  if (answered.value().packets == 0) return Status();
  peer.confirmed += static_cast<uint64_t>(answered.value().packets - answered.value().lost);
  peer.answered = peer.unanswered_since = now;
  peer.unanswered = peer.only_here = 0;
  const int64_t response = arrived - answered.value().sent;
  // If the response time is shorter than the receiver's delay, a clock was set, and the time is not used.
  if (answered.value().sent == 0 || response < header.offset) return Status();
  peer.deviation = (3 * peer.deviation + std::abs(response - peer.response)) / 4;
  peer.response = peer.response == 0 ? response : (7 * peer.response + response) / 8;
  Answered counted = answered.value();
  if (header.asks) counted.lost = 0;  // the receiver had no room, and the network lost nothing
  peer.rate.Take(counted, {response - header.offset, static_cast<uint32_t>(counted.sent / 1000), header.bytes}, now);
  return Status();
}

// Sends an acknowledgement. If no packet follows, the acknowledgement is repeated once, because it may get lost. If the
// repetition gets lost too, the peer sends a probe.
void UdpTransport::Answer(Peer& peer) {
  std::byte packet[kPacketHeaderBytes + kAnswerBytes + kMaxTrailerBytes], bits[kAnswerBytes];
  const size_t size = kPacketHeaderBytes + kAnswerBytes + peer.seals.answers.trailer_bytes();
  PacketHeader header;
  const bool is_new = peer.assembler.owes_answer();
  peer.assembler.Answer(WallClock(), &header, bits);
  std::copy(bits, bits + kAnswerBytes, packet + kPacketHeaderBytes);
  peer.seals.answers.Seal(header, packet, size);
  const bool is_sent = SendDatagrams(peer.path.socket, packet, {size}, TrafficClass::kUrgent, &peer.datagrams) > 0;
  peer.answer_at = is_new || !is_sent ? NowNanoseconds() + kAnswerDelay : 0;
}

void UdpTransport::Probe(Peer& peer) {
  std::byte packet[kPacketHeaderBytes + kMaxTrailerBytes];
  const size_t size = kPacketHeaderBytes + peer.seals.packets.trailer_bytes();
  peer.seals.packets.Seal(peer.queue.Probe(WallClock()), packet, size);
  SendDatagrams(peer.path.socket, packet, {size}, TrafficClass::kImportant, &peer.datagrams);
}

void UdpTransport::Write(Lock& lock, SocketPeer& its) {
  Peer& peer = static_cast<Peer&>(its);
  if (peer.writing || peer.blocked) return;  // the writing thread, or the next EPOLLOUT, also writes new frames
  peer.writing = true;
  ++peer.users;
  int batches = server_ == std::this_thread::get_id() ? INT_MAX : kFlushedBatches;
  while (batches-- > 0 && peer.gone.ok() && !peer.blocked && FillBatch(peer)) {
    lock.unlock();
    std::byte* packet = peer.bytes.data();
    for (size_t i = 0; i < peer.sizes.size(); packet += peer.sizes[i++]) {
      peer.seals.packets.Seal(peer.headers[i], packet, peer.sizes[i]);
    }
    const size_t taken =
        SendDatagrams(peer.path.socket, peer.bytes.data(), peer.sizes, peer.traffic_class, &peer.datagrams);
    lock.lock();
    peer.blocked = taken < peer.sizes.size();
    if (peer.blocked && peer.gone.ok()) peer.queue.Unsend(peer.sizes.size() - taken);
  }
  if (peer.gone.ok() && !peer.blocked && peer.queue.ends_message()) Probe(peer);
  peer.writing = false;
  --peer.users;
  CloseUnused(peer);
  if (peer.blocked) SetInterest(peer);
  if (!callbacks_.empty() || (peer.blocked && server_ == std::thread::id())) Wake();
  // Wakes the polling thread if it would sleep past the next probe. An acknowledgement would also wake this thread, but
  // may get lost.
  constexpr int64_t kSlack = 4000000;
  if (peer.queue.is_under_way() && NowNanoseconds() + peer.AnswerTimeout() + kSlack < sleeps_until_) Wake();
  if (peer.queue.has_next() && peer.rate.NextAt() < sleeps_until_) Wake();
}

// Copies the packets that may be sent now, so that callers' memory is read only under the lock. Returns false if there
// are none.
bool UdpTransport::FillBatch(Peer& peer) {
  const int64_t now = NowNanoseconds();
  if (now < peer.held_until || !peer.queue.has_next()) return false;
  const int64_t most = std::min(peer.rate.batch(), peer.rate.Allowance(now));
  if (!peer.queue.is_under_way()) {
    peer.answered = peer.unanswered_since = now;
    peer.only_here = 0;
  }
  // A wait until the rate allows more packets is no pause. Otherwise the arrival rate of a slow flow would never be
  // measured.
  if (peer.queue.has_paused()) peer.rate.Pause(now);
  peer.sizes.clear();
  peer.headers.clear();
  int64_t bytes = 0;
  const bool is_important = peer.queue.IsNextImportant();
  peer.traffic_class = is_important ? TrafficClass::kImportant : TrafficClass::kOrdinary;
  while (bytes < most && peer.sizes.size() < kMaxBatchPackets && peer.queue.IsNextImportant() == is_important) {
    peer.bytes.resize(std::max(peer.bytes.size(), static_cast<size_t>(bytes) + peer.path.packet_bytes));
    size_t size;
    const std::optional<PacketHeader> header =
        peer.queue.Next(WallClock(), peer.bytes.data() + bytes + kPacketHeaderBytes, &size);
    if (!header) break;
    peer.headers.push_back(*header);
    peer.sizes.push_back(kPacketHeaderBytes + size + peer.seals.packets.trailer_bytes());
    bytes += static_cast<int64_t>(peer.sizes.back());
  }
  peer.rate.Spend(bytes);
  return bytes > 0;
}

// Reads kAsk, kHere or the end of the connection. Any other byte is an error.
void UdpTransport::ReadConnection(Lock& lock, Peer& peer) {
  std::array<std::byte, 64> come;
  const ssize_t bytes = recv(peer.path.connection, come.data(), come.size(), MSG_DONTWAIT);
  const int error = bytes < 0 ? errno : 0;
  if (error == EAGAIN || error == EINTR) return;
  Read(lock, peer);  // reads the packets that arrived before these bytes
  if (!peer.gone.ok()) return;
  const auto count = [&](std::byte byte) {
    return bytes < 0 ? 0 : std::count(come.begin(), come.begin() + bytes, byte);
  };
  if (bytes > 0 && count(kAsk) + count(kHere) == bytes) {
    if (count(kAsk) > 0) send(peer.path.connection, &kHere, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count(kHere) > 0) TakeHere(lock, peer);
    return;
  }
  Fail(lock, peer,
       bytes > 0 ? CutOff(peer.process,
                          InvalidArgument("unexpected bytes over the connection that shows whether it is alive"))
                 : Gone(peer.process, DescribeEnd(error)));
  RunCallbacks(lock);
}

// Handles kHere. This reply shows that the process runs, and that it had read all arrived packets before the reply.
void UdpTransport::TakeHere(Lock& lock, Peer& peer) {
  const int64_t now = NowNanoseconds();
  if (!std::exchange(peer.is_asked, false) || !peer.queue.is_under_way() || now < peer.held_until) return;
  ++peer.only_here;
  const std::chrono::nanoseconds limit = silence_ / (rail_.empty() ? 2 : 10);
  if (peer.only_here < kLeastHere || now - peer.unanswered_since < limit.count()) return;
  Fail(lock, peer,
       Gone(peer.process, "UDP does not pass to " + PeerAddress(peer.path.connection) +
                              ": no packet has been answered for " + FormatSeconds(limit) +
                              ", while the process answers over TCP; let the firewalls between the hosts pass UDP, or "
                              "set JAXCOMM_TRANSPORT=tcp"));
  RunCallbacks(lock);
}

void UdpTransport::AskProcess(Peer& peer) {
  peer.is_asked = send(peer.path.connection, &kAsk, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

void UdpTransport::Fail(Lock&, SocketPeer& its, const Status& end) {
  Peer& peer = static_cast<Peer&>(its);
  if (!peer.gone.ok()) return;
  peer.left |= stopping_;
  const Status why = stopping_ ? Status(Code::kInternal, "this process has left the job") : end;
  if (peer.silent_looks > 0) ResetAtClose(peer.path.connection);  // the host is silent: a FIN would get lost
  ReportEnd(peer, why);
  for (Incoming& arrival : peer.assembler.TakeArrivals()) inbox_.Fail(peer.process, why, std::move(arrival));
  inbox_.Fail(peer.process, why, std::nullopt);
  End(peer, why);
  CloseUnused(peer);
  Wake();
}

void UdpTransport::End(Peer& peer, const Status& why) {
  peer.gone = why;
  for (const int socket : {peer.path.socket, peer.path.connection}) epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
  for (std::shared_ptr<Outgoing>& message : peer.queue.Clear()) {
    message->status = why;
    Finish(std::move(message));
  }
}

// Closes the sockets of a process that is gone, unless a thread uses them.
void UdpTransport::CloseUnused(Peer& peer) {
  if (peer.gone.ok() || peer.users > 0) return;
  for (int* const socket : {&peer.path.socket, &peer.path.connection}) {
    CloseOwn(std::exchange(*socket, -1));
  }
}

void UdpTransport::SetInterest(Peer& peer) {
  if (!peer.gone.ok()) return;
  epoll_event event{};
  event.events = EPOLLIN | (peer.blocked ? EPOLLOUT : 0u);
  event.data.u64 = KeyOf(peer.process, /*is_connection=*/false);
  epoll_ctl(epoll_, EPOLL_CTL_MOD, peer.path.socket, &event);
}

}  // namespace jaxcomm

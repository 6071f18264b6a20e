// Reads, acknowledges and writes packets on the paths to one process, and ends these paths together.
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
// The same time with several paths. It is longer, because each path gets fewer packets in a given time, and an
// acknowledgement has a seventh of a packet's size.
constexpr int64_t kPathAnswerDelay = 4000000;
constexpr int64_t kHold = 50000000;  // nanoseconds during which a process without room gets only probes
constexpr size_t kMaxBatchPackets = 64;
// The maximum number of batches that Write sends on any thread except the polling thread. Such a thread has other work,
// for example on another rail.
constexpr int kFlushedBatches = 4;
constexpr int kLeastHere = 4;  // minimum number of replies over TCP, and none over UDP, before a path ends

}  // namespace

void UdpTransport::Read(Lock& lock, Peer& peer, size_t number) {
  struct Opened {
    PacketHeader header;
    const Datagram* datagram;
  };
  std::vector<Opened> opened;
  // A callback may have ended the path, and another thread may have started a path with fewer sockets.
  for (int i = 0; i < kReads && peer.gone.ok() && number < peer.paths.size(); ++i) {
    Path& path = peer.paths[number];
    // All acknowledgements use the first path's keys, because acknowledgements of all paths are numbered together.
    PacketOpener &packets = path.seals.arrivals, &answers = peer.paths[0].seals.arrivals;
    const size_t trailer = packets.trailer_bytes();
    ++peer.users;
    lock.unlock();
    const std::vector<Datagram>& datagrams = received_.Receive(path.ends.socket);
    opened.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.size > peer.path.packet_bytes) continue;
      PacketOpener& opener = IsAnswer(datagram.bytes, datagram.size) ? answers : packets;
      const std::optional<PacketHeader> header = opener.Open(datagram.bytes, datagram.size);
      if (header) opened.push_back({*header, &datagram});
    }
    lock.lock();
    --peer.users;
    peer.forged += static_cast<int64_t>(datagrams.size() - opened.size());
    for (const auto& [header, datagram] : opened) {
      if (!peer.gone.ok()) break;
      const Status status = Take(peer, number, header, datagram->bytes + kPacketHeaderBytes,
                                 datagram->size - kPacketHeaderBytes - trailer, datagram->arrived);
      if (!status.ok()) Fail(lock, peer, CutOff(peer.process, status));
    }
    if (!peer.gone.ok()) break;
    if (peer.assembler.owes_answer_now(number) || peer.assembler.at_end()) {
      Answer(peer, number);
    } else if (peer.assembler.owes_answer(number) && path.answer_at == 0) {
      path.answer_at = NowNanoseconds() + (peer.paths.size() == 1 ? kAnswerDelay : kPathAnswerDelay);
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

Status UdpTransport::Take(Peer& peer, size_t number, const PacketHeader& header, const std::byte* bytes, size_t size,
                          int64_t arrived) {
  if (header.kind == PacketKind::kAnswer) return TakeAnswer(peer, header, bytes, size, arrived);
  return peer.assembler.Take(header, bytes, size, arrived, number);
}

Status UdpTransport::TakeAnswer(Peer& peer, const PacketHeader& header, const std::byte* bytes, size_t size,
                                int64_t arrived) {
  if (size != kAnswerBytes) return InvalidArgument("an answer of " + std::to_string(size) + " bytes");
  const size_t number = header.sent;
  if (number >= peer.paths.size()) return InvalidArgument("an answer for path " + std::to_string(number));
  Path& path = peer.paths[number];
  std::vector<std::shared_ptr<Outgoing>> done;
  const Result<Answered> answered = peer.queue.Take(header, bytes, &done, number);
  if (!answered.ok()) return answered.status();
  for (std::shared_ptr<Outgoing>& message : done) Finish(std::move(message));
  peer.NoteLongLost(answered.value());
  const int64_t now = NowNanoseconds();
  if (header.number > peer.newest_answer) {  // acknowledgements on different paths overtake each other
    peer.newest_answer = header.number;
    peer.held_until = header.asks ? now + kHold : 0;
  }
  if (answered.value().packets == 0) return Status();
  peer.confirmed += static_cast<uint64_t>(answered.value().packets - answered.value().lost);
  path.answered = path.confirmed_at = peer.confirmed_at = peer.unanswered_since = now;
  path.unanswered = peer.only_here = 0;
  path.is_silent = false;
  const int64_t response = arrived - answered.value().sent;
  // If the response time is shorter than the receiver's delay, a clock was set, and the time is not used.
  if (answered.value().sent == 0 || response < header.offset) return Status();
  path.deviation = (3 * path.deviation + std::abs(response - path.response)) / 4;
  path.response = path.response == 0 ? response : (7 * path.response + response) / 8;
  Answered counted = answered.value();
  if (header.asks) counted.lost = 0;  // the receiver had no room, and the network lost nothing
  Trip trip{response - header.offset, static_cast<uint32_t>(counted.sent / 1000), header.bytes};
  if (peer.paths.size() > 1) {
    for (const Path& each : peer.paths) trip.shortest.Include(each.rate.shortest());
  }
  path.rate.Take(counted, trip, now);
  return Status();
}

// Sends an acknowledgement. If no packet follows, the acknowledgement is repeated once, because it may get lost. If the
// repetition gets lost too, the peer sends a probe. With several paths, only requested acknowledgements are repeated:
// the packets of a slow path are so far apart that every acknowledgement would be repeated. The path may pass packets
// in one direction only, and this process notices that only if it also sends packets. Repetitions, and all
// acknowledgements of a silent path, are therefore sent over the paths that are not silent, in turn. Acknowledgements
// of all paths are numbered together, so all use the first path's keys.
void UdpTransport::Answer(Peer& peer, size_t number) {
  std::byte packet[kPacketHeaderBytes + kAnswerBytes + kMaxTrailerBytes], bits[kAnswerBytes];
  PacketSealer& sealer = peer.paths[0].seals.answers;
  const size_t size = kPacketHeaderBytes + kAnswerBytes + sealer.trailer_bytes();
  PacketHeader header;
  const bool is_new = peer.assembler.owes_answer(number);
  const bool is_repeated = is_new && (peer.paths.size() == 1 || peer.assembler.owes_answer_now(number));
  peer.assembler.Answer(WallClock(), &header, bits, number);
  std::copy(bits, bits + kAnswerBytes, packet + kPacketHeaderBytes);
  size_t over = number;
  if (!is_new || peer.paths[number].is_silent) {
    do {  // at least one path is not silent
      peer.answers_over = (peer.answers_over + 1) % peer.paths.size();
    } while (peer.paths[peer.answers_over].is_silent);
    over = peer.answers_over;
  }
  Path& path = peer.paths[over];
  sealer.Seal(header, packet, size);
  // Acknowledgements wait behind no packets of the peer's messages.
  const TrafficClass urgent = {static_cast<uint8_t>(peer.path.priorities == 1 ? 6 : 7), /*is_important=*/true};
  const bool is_sent = SendDatagrams(path.ends.socket, packet, {size}, urgent, &path.datagrams) > 0;
  peer.paths[number].answer_at = is_repeated || !is_sent ? NowNanoseconds() + kAnswerDelay : 0;
}

void UdpTransport::Probe(Peer& peer, size_t number) { Probe(peer, number, peer.queue.LastPriority(number)); }

void UdpTransport::ProbeIfOwed(Peer& peer) {
  if (const auto priority = peer.queue.OwedProbe()) Probe(peer, peer.FastestPath(), *priority);
}

void UdpTransport::Probe(Peer& peer, size_t number, uint32_t priority) {
  Path& path = peer.paths[number];
  if (!peer.queue.is_under_way(number)) path.answered = NowNanoseconds();
  std::byte packet[kPacketHeaderBytes + kMaxTrailerBytes];
  const size_t size = kPacketHeaderBytes + path.seals.packets.trailer_bytes();
  const TrafficClass traffic_class = peer.ClassOf(priority, /*is_important=*/true);
  path.seals.packets.Seal(peer.queue.Probe(WallClock(), number, priority), packet, size);
  SendDatagrams(path.ends.socket, packet, {size}, traffic_class, &path.datagrams);
}

// Handles the end of an AnswerTimeout. Each timeout is twice the previous one, so the second timeout in a row ends
// three times the first timeout after the last acknowledgement. If another path has been acknowledged meanwhile, the
// process runs, and this path becomes silent. Otherwise all paths wait for the process. To find out whether other paths
// work, idle paths get a probe.
void UdpTransport::TakeTimeout(Peer& peer, size_t number) {
  constexpr int kSilentTimeouts = 2;
  Path& path = peer.paths[number];
  ++path.unanswered;
  if (path.unanswered >= kSilentTimeouts && peer.confirmed_at > path.answered && !path.is_silent) {
    path.is_silent = true;
    std::vector<std::shared_ptr<Outgoing>> done;
    peer.queue.GiveUp(number, &done);
    for (std::shared_ptr<Outgoing>& message : done) Finish(std::move(message));
    ProbeIfOwed(peer);
  }
  path.answered = NowNanoseconds();
  Probe(peer, number);
  if (path.is_silent) return;
  for (size_t other = 0; other < peer.paths.size(); ++other) {
    if (!peer.queue.is_under_way(other)) Probe(peer, other);
  }
}

void UdpTransport::Write(Lock& lock, SocketPeer& its) {
  Peer& peer = static_cast<Peer&>(its);
  if (peer.writing) return;  // the writing thread writes new frames, too; EPOLLOUT resumes blocked paths
  peer.writing = true;
  ++peer.users;
  int batches = server_ == std::this_thread::get_id() ? INT_MAX : kFlushedBatches;
  bool blocked = false;
  while (batches-- > 0 && peer.gone.ok()) {
    const std::optional<size_t> number = NextPath(peer, NowNanoseconds());
    if (!number || !FillBatch(peer, *number)) break;
    Path& path = peer.paths[*number];
    lock.unlock();
    std::byte* packet = peer.bytes.data();
    for (size_t i = 0; i < peer.sizes.size(); packet += peer.sizes[i++]) {
      path.seals.packets.Seal(peer.headers[i], packet, peer.sizes[i]);
    }
    const size_t taken =
        SendDatagrams(path.ends.socket, peer.bytes.data(), peer.sizes, peer.traffic_class, &path.datagrams);
    lock.lock();
    path.blocked = taken < peer.sizes.size();
    if (!path.blocked || !peer.gone.ok()) continue;
    peer.queue.Unsend(peer.sizes.size() - taken, *number);
    SetInterest(peer, *number);
    blocked = true;
  }
  for (size_t i = 0; i < peer.paths.size() && peer.gone.ok(); ++i) {
    if (!peer.paths[i].blocked && peer.queue.ends_message(i)) Probe(peer, i);
  }
  if (peer.gone.ok()) ProbeIfOwed(peer);
  peer.writing = false;
  --peer.users;
  CloseUnused(peer);
  if (!callbacks_.empty() || (blocked && server_ == std::thread::id())) Wake();
  // Wakes the polling thread if it would sleep past the next probe. An acknowledgement would also wake the polling
  // thread, but may get lost.
  constexpr int64_t kSlack = 4000000;
  if (peer.AwaitsAnswer() && peer.NextTimeout() + kSlack < sleeps_until_) Wake();
  if (peer.NextBatchAt(NowNanoseconds()) < sleeps_until_) Wake();
}

// Returns the path that will deliver the next packets soonest. Considers only paths whose rates allow a batch now.
std::optional<size_t> UdpTransport::NextPath(Peer& peer, int64_t now) {
  std::optional<size_t> next;
  if (now < peer.held_until) return next;
  const int64_t longest_useful = peer.LongestUsefulResponse(now);
  for (size_t i = 0; i < peer.paths.size(); ++i) {
    if (!peer.IsOpen(i, longest_useful, now) || peer.paths[i].rate.Allowance(now) == 0) continue;
    if (!next || Peer::ResponseOf(peer.paths[i], now) < Peer::ResponseOf(peer.paths[*next], now)) next = i;
  }
  return next;
}

// Copies the packets that may be sent now, because the memory of callers may be read only while the lock is held.
// Returns false if there are no such packets.
bool UdpTransport::FillBatch(Peer& peer, size_t number) {
  const int64_t now = NowNanoseconds();
  Path& path = peer.paths[number];
  const int64_t most = std::min(path.rate.batch(), path.rate.Allowance(now));
  if (!peer.AwaitsAnswer()) {
    peer.unanswered_since = now;
    peer.only_here = 0;
  }
  if (!peer.queue.is_under_way(number)) path.answered = now;
  // A wait until the rate allows more packets is no pause. Otherwise the arrival rate of a slow flow would never be
  // measured.
  if (peer.queue.has_paused(number)) path.rate.Pause(now);
  peer.sizes.clear();
  peer.headers.clear();
  int64_t bytes = 0;
  const SendQueue::NextPacket next = peer.queue.PeekNext();
  peer.traffic_class = peer.ClassOf(next.priority, next.is_important);
  while (bytes < most && peer.sizes.size() < kMaxBatchPackets && peer.queue.PeekNext() == next) {
    peer.bytes.resize(std::max(peer.bytes.size(), static_cast<size_t>(bytes) + peer.path.packet_bytes));
    size_t size;
    const std::optional<PacketHeader> header =
        peer.queue.Next(WallClock(), peer.bytes.data() + bytes + kPacketHeaderBytes, &size, number);
    if (!header) break;
    peer.headers.push_back(*header);
    peer.sizes.push_back(kPacketHeaderBytes + size + path.seals.packets.trailer_bytes());
    bytes += static_cast<int64_t>(peer.sizes.back());
  }
  path.rate.Spend(bytes);
  return bytes > 0;
}

// Reads kAsk, kHere or the end of the connection. Any other byte is an error.
void UdpTransport::ReadConnection(Lock& lock, Peer& peer) {
  std::array<std::byte, 64> come;
  const ssize_t bytes = recv(peer.path.connection, come.data(), come.size(), MSG_DONTWAIT);
  const int error = bytes < 0 ? errno : 0;
  if (error == EAGAIN || error == EINTR) return;
  for (size_t i = 0; i < peer.paths.size() && peer.gone.ok(); ++i) {
    Read(lock, peer, i);  // reads the packets that arrived before these bytes
  }
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
  if (!std::exchange(peer.is_asked, false) || !peer.AwaitsAnswer() || now < peer.held_until) return;
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
  for (const int socket : SocketsOf(peer.path)) epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
  for (std::shared_ptr<Outgoing>& message : peer.queue.Clear()) {
    message->status = why;
    Finish(std::move(message));
  }
}

// Closes the sockets of a process that has ended, unless a thread uses them.
void UdpTransport::CloseUnused(Peer& peer) {
  if (peer.gone.ok() || peer.users > 0 || peer.path.connection < 0) return;
  for (const int socket : SocketsOf(peer.path)) CloseOwn(socket);
  peer.path.connection = -1;
}

void UdpTransport::SetInterest(Peer& peer, size_t number) {
  if (!peer.gone.ok()) return;
  const Path& path = peer.paths[number];
  epoll_event event{};
  event.events = EPOLLIN | (path.blocked ? EPOLLOUT : 0u);
  event.data.u64 = KeyOf(peer.process, number);
  epoll_ctl(epoll_, EPOLL_CTL_MOD, path.ends.socket, &event);
}

}  // namespace jaxcomm

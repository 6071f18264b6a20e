#include "cc/simulated_system/network.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace jaxcomm::simulated {
namespace {

constexpr size_t kSegmentBytes = 1448;         // tcpi_snd_mss
constexpr Nanoseconds kProbes = 10 * kSecond;  // an idle connection ends if no probe is answered for this time
constexpr Nanoseconds kRepeats = 200 * kMillisecond;

Network* the_network = nullptr;

Scheduler& TheScheduler() { return Scheduler::Get(); }
Nanoseconds Now() { return TheScheduler().now(); }
Nanoseconds RandomTime(Nanoseconds limit) {
  return static_cast<Nanoseconds>(TheScheduler().Random(static_cast<uint64_t>(limit + 1)));
}

// Occupies the link for `bytes` bytes. Returns the time at which their last byte leaves the sender.
Nanoseconds Occupy(Link& link, size_t bytes) {
  link.free_at = std::max(link.free_at, Now()) + static_cast<Nanoseconds>(bytes) * kSecond / link.bytes_per_second;
  return link.free_at;
}

std::string Gather(const iovec* vectors, size_t count, size_t limit) {
  std::string bytes;
  for (size_t i = 0; i < count && bytes.size() < limit; ++i) {
    bytes.append(static_cast<const char*>(vectors[i].iov_base), std::min(vectors[i].iov_len, limit - bytes.size()));
  }
  return bytes;
}

size_t Scatter(const char* bytes, size_t size, const iovec* vectors, size_t count) {
  size_t done = 0;
  for (size_t i = 0; i < count && done < size; ++i) {
    const size_t part = std::min(vectors[i].iov_len, size - done);
    std::memcpy(vectors[i].iov_base, bytes + done, part);
    done += part;
  }
  return done;
}

}  // namespace

ssize_t Descriptor::Error(int error) {
  errno = error;
  return -1;
}

void Descriptor::Changed() const {
  if (owner != nullptr) TheScheduler().Wake(Network::KeyOf(*owner));
}

TcpSocket::TcpSocket(Link& out, Link& in, Address peer_address)
    : peer_address(peer_address),
      out_(out),
      in_(in),
      send_room_(size_t{4} << (10 + TheScheduler().Random(11))),
      receive_room_(size_t{4} << (10 + TheScheduler().Random(11))),
      heard_(Now()) {}

void TcpSocket::Pair(const std::shared_ptr<TcpSocket>& a, const std::shared_ptr<TcpSocket>& b) {
  a->peer_ = b;
  b->peer_ = a;
}

uint32_t TcpSocket::Ready() const {
  uint32_t events = 0;
  if (unread() > 0 || has_end_ || error_ != 0) events |= EPOLLIN;
  if (queued_ < send_room_ || error_ != 0) events |= EPOLLOUT;
  if (error_ != 0) events |= EPOLLERR;
  if (error_ != 0 || (has_end_ && is_shut_)) events |= EPOLLHUP;
  return events;
}

ssize_t TcpSocket::Send(const iovec* vectors, size_t count) {
  if (error_ != 0) return Error(std::exchange(error_, 0));
  if (is_shut_) return Error(EPIPE);
  if (queued_ >= send_room_) return Error(EAGAIN);
  std::string bytes = Gather(vectors, count, send_room_ - queued_);
  if (bytes.size() > 1 && TheScheduler().Random(20) == 0) bytes.resize(1 + TheScheduler().Random(bytes.size() - 1));
  const size_t sent = bytes.size();
  queued_ += sent;
  for (size_t at = 0; at < sent;) {
    const size_t part = std::min(sent - at, 1 + TheScheduler().Random(64 << 10));
    Push(bytes.substr(at, part), false);
    at += part;
  }
  Pump();
  return static_cast<ssize_t>(sent);
}

void TcpSocket::Push(std::string bytes, bool is_end) {
  const Nanoseconds arrives = Occupy(out_, bytes.size()) + out_.delay;
  flight_.push_back({std::move(bytes), flight_.empty() ? arrives : std::max(arrives, flight_.back().arrives), is_end});
}

// Delivers the segments that have arrived.
void TcpSocket::Pump() {
  while (!flight_.empty()) {
    Segment& first = flight_.front();
    const auto again = [socket = self()] { socket->Pump(); };
    if (first.arrives > Now()) return TheScheduler().At(first.arrives, again);
    if (out_.is_cut) return out_.deferred.push_back(again);
    if (peer_->is_closed_) {
      flight_.clear();
      return peer_->SendReset();
    }
    const size_t room = peer_->receive_room_ - std::min(peer_->receive_room_, peer_->unread());
    if (!first.is_end && room == 0) return;  // the receiver's next read calls Pump
    peer_->heard_ = Now();
    if (first.is_end) {
      peer_->has_end_ = true;
      flight_.pop_front();
    } else {
      const size_t part = std::min(room, first.bytes.size());
      peer_->received_.append(first.bytes, 0, part);
      if (part == first.bytes.size()) {
        flight_.pop_front();
      } else {
        first.bytes.erase(0, part);
      }
      TheScheduler().At(Now() + in_.delay, [socket = self(), part] { socket->Acknowledge(part); });
    }
    peer_->Changed();
  }
}

void TcpSocket::Acknowledge(size_t bytes) {
  if (in_.is_cut) return in_.deferred.push_back([socket = self(), bytes] { socket->Acknowledge(bytes); });
  queued_ -= std::min(queued_, bytes);
  acknowledged_ += bytes;
  heard_ = Now();
  Changed();
}

ssize_t TcpSocket::Receive(const iovec* vectors, size_t count) {
  if (unread() == 0) {
    if (error_ != 0) return Error(std::exchange(error_, 0));
    return has_end_ || is_shut_ ? 0 : Error(EAGAIN);
  }
  size_t part = unread();
  if (TheScheduler().Random(20) == 0) part = 1 + TheScheduler().Random(part);
  const size_t done = Scatter(received_.data() + read_, part, vectors, count);
  read_ += done;
  if (read_ == received_.size()) {
    received_.clear();
    read_ = 0;
  }
  TheScheduler().At(Now() + out_.delay, [peer = peer_] { peer->Pump(); });
  return static_cast<ssize_t>(done);
}

void TcpSocket::Shutdown() {
  if (std::exchange(is_shut_, true)) return;
  Push("", true);
  Pump();
  Changed();
}

void TcpSocket::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  if (resets_ || unread() > 0) {
    flight_.clear();
    return SendReset();
  }
  if (!std::exchange(is_shut_, true)) Push("", true);
  Pump();
}

// Sends a reset once, as the kernel does. A cut link loses the reset.
void TcpSocket::SendReset() {
  if (out_.is_cut) return;
  TheScheduler().At(Now() + out_.delay, [peer = peer_] { peer->Reset(); });
}

void TcpSocket::Reset() {
  if (is_closed_) return;
  error_ = ECONNRESET;
  flight_.clear();
  queued_ = 0;
  is_shut_ = true;
  Changed();
}

void TcpSocket::CheckAlive() {
  if (is_closed_ || !is_cut() || queued_ > 0 || Now() - LastHeard() < kProbes) return;
  error_ = ETIMEDOUT;
  is_shut_ = true;
  flight_.clear();
  Changed();
}

// Returns the time at which the peer was last heard. Idle connections are probed once a second, so an idle peer that
// can be reached was heard half a second ago.
Nanoseconds TcpSocket::LastHeard() const {
  if (queued_ > 0) return heard_;
  if (!is_cut()) return std::max(heard_, Now() - kSecond / 2);
  const Nanoseconds since = std::max(out_.is_cut ? out_.cut_since : 0, in_.is_cut ? in_.cut_since : 0);
  return std::max(heard_, since);
}

void TcpSocket::Describe(tcp_info* info) const {
  *info = tcp_info{};
  const size_t window = peer_->receive_room_ - std::min(peer_->receive_room_, peer_->unread());
  info->tcpi_snd_mss = kSegmentBytes;
  info->tcpi_unacked = static_cast<uint32_t>((queued_ + kSegmentBytes - 1) / kSegmentBytes);
  info->tcpi_snd_wnd = static_cast<uint32_t>(window);
  info->tcpi_bytes_acked = acknowledged_;
  info->tcpi_last_ack_recv = static_cast<uint32_t>((Now() - LastHeard()) / kMillisecond);
  const bool probes = queued_ == 0 || window == 0;
  if (probes && is_cut()) {
    const Nanoseconds since = std::max(out_.is_cut ? out_.cut_since : 0, in_.is_cut ? in_.cut_since : 0);
    info->tcpi_probes = static_cast<uint8_t>(std::min<Nanoseconds>((Now() - std::max(heard_, since)) / kSecond, 9));
  }
}

void UdpSocket::Pair(const std::shared_ptr<UdpSocket>& a, const std::shared_ptr<UdpSocket>& b) {
  a->peer_ = b;
  b->peer_ = a;
}

uint32_t UdpSocket::Ready() const {
  uint32_t events = 0;
  if (!queue_.empty() || error_ != 0) events |= EPOLLIN;
  if (error_ != 0) events |= EPOLLERR;
  if (out_.free_at < Now() + kDeviceQueue) events |= EPOLLOUT;
  return events;
}

ssize_t UdpSocket::Send(const iovec* vectors, size_t count) {
  if (error_ != 0) return Error(std::exchange(error_, 0));
  if (out_.free_at >= Now() + kDeviceQueue) {
    TheScheduler().At(out_.free_at, [socket = self()] { socket->Changed(); });
    return Error(EAGAIN);
  }
  const std::string bytes = Gather(vectors, count, 65536);
  const Nanoseconds left = Occupy(out_, bytes.size());
  const int copies = TheScheduler().Chance(out_.loss) ? 0 : TheScheduler().Chance(out_.repeats) ? 2 : 1;
  for (int copy = 0; copy < copies && bytes.size() <= out_.mtu; ++copy) {
    TheScheduler().At(left + out_.delay + RandomTime(out_.jitter),
                      [socket = self(), bytes] { socket->Deliver(bytes); });
  }
  return static_cast<ssize_t>(bytes.size());
}

void UdpSocket::Deliver(const std::string& bytes) {
  if (out_.is_cut) return;
  if (peer_->is_closed_) {
    error_ = ECONNREFUSED;
    return Changed();
  }
  if (peer_->queue_.size() >= kMostQueued) return;
  peer_->queue_.push_back({bytes, TheScheduler().wall()});
  peer_->Changed();
}

bool UdpSocket::Take(Datagram* datagram) {
  if (error_ != 0) return Error(std::exchange(error_, 0)), false;
  if (queue_.empty()) return Error(EAGAIN), false;
  *datagram = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

uint32_t EventFd::Ready() const { return EPOLLOUT | (count_ > 0 ? uint32_t{EPOLLIN} : 0); }

ssize_t EventFd::Send(const iovec* vectors, size_t) {
  uint64_t added;
  std::memcpy(&added, vectors[0].iov_base, sizeof(added));
  count_ += added;
  Changed();
  return sizeof(added);
}

ssize_t EventFd::Receive(const iovec* vectors, size_t) {
  if (count_ == 0) return Error(EAGAIN);
  std::memcpy(vectors[0].iov_base, &count_, sizeof(count_));
  count_ = 0;
  return sizeof(count_);
}

Network::Network(Scheduler& scheduler) : scheduler_(scheduler) { the_network = this; }
Network& Network::Get() { return *the_network; }

void Network::Cut(Link& link) {
  if (std::exchange(link.is_cut, true)) return;
  link.cut_since = Now();
  for (const auto& [over, weak] : connections_) {
    if (over != &link) continue;
    const auto check = [weak = weak] {
      if (const auto socket = weak.lock()) socket->CheckAlive();
    };
    // Checks several times, because the peer may still acknowledge the last bytes if only one direction is cut.
    for (int i = 1; i <= 4; ++i) scheduler_.At(Now() + kProbes + i * kSecond, check);
  }
}

void Network::Mend(Link& link) {
  if (!std::exchange(link.is_cut, false)) return;
  for (auto& repeat : std::exchange(link.deferred, {})) {
    scheduler_.At(Now() + RandomTime(kRepeats), std::move(repeat));
  }
}

std::pair<int, int> Network::ConnectTcp(End a, End b, uint32_t rail) {
  Link& out = Between(a.host, b.host, rail);
  Link& in = Between(b.host, a.host, rail);
  const auto one = std::make_shared<TcpSocket>(out, in, Address{b.host, rail});
  const auto other = std::make_shared<TcpSocket>(in, out, Address{a.host, rail});
  TcpSocket::Pair(one, other);
  for (Link* const link : {&out, &in}) {
    connections_.emplace_back(link, one);
    connections_.emplace_back(link, other);
  }
  other->is_accepted = false;
  return {Add(one, a.process), Add(other, b.process)};
}

std::pair<int, int> Network::ConnectUdp(End a, End b, uint32_t rail) {
  const auto one = std::make_shared<UdpSocket>(Between(a.host, b.host, rail), Address{b.host, rail});
  const auto other = std::make_shared<UdpSocket>(Between(b.host, a.host, rail), Address{a.host, rail});
  UdpSocket::Pair(one, other);
  other->is_accepted = false;
  return {Add(one, a.process), Add(other, b.process)};
}

int Network::Add(std::shared_ptr<Descriptor> descriptor, Process& owner) {
  descriptor->owner = &owner;
  descriptor->fd = next_;
  descriptors_[next_] = std::move(descriptor);
  return next_++;
}

Descriptor* Network::Find(int fd) {
  const auto found = descriptors_.find(fd);
  if (found != descriptors_.end()) return found->second.get();
  errno = EBADF;
  return nullptr;
}

int Network::Close(int fd) {
  const auto found = descriptors_.find(fd);
  if (found == descriptors_.end()) {
    errno = EBADF;
    return -1;
  }
  const std::shared_ptr<Descriptor> closed = std::move(found->second);
  descriptors_.erase(found);
  closed->Close();
  return 0;
}

size_t Network::Count(const Process& process) const {
  const auto is_own = [&](const auto& each) { return each.second->owner == &process && each.second->is_accepted; };
  return static_cast<size_t>(std::count_if(descriptors_.begin(), descriptors_.end(), is_own));
}

void Network::CloseAll(const Process& process) {
  std::vector<int> own;
  for (const auto& [fd, descriptor] : descriptors_) {
    if (descriptor->owner == &process) own.push_back(fd);
  }
  for (const int fd : own) Close(fd);
}

}  // namespace jaxcomm::simulated

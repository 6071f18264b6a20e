// The C library's functions for descriptors and for the memory of other processes, as simulated tasks see them.
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
#include <set>

#include "cc/simulated_system/network.h"
#include "cc/simulated_system/processes.h"
#include "cc/simulated_system/real.h"
#include "cc/simulated_system/scheduler.h"

namespace jaxcomm::simulated {
namespace {

constexpr int kUdpSegment = 103;  // UDP_SEGMENT

bool IsSimulated(int fd) { return Scheduler::current() != nullptr && fd >= Network::kFirstDescriptor; }

// Lets other tasks run before a system call. Returns whether a signal interrupts the call, which happens at random.
bool IsInterrupted() {
  Scheduler::Get().Point();
  if (Scheduler::Get().Random(300) != 0) return false;
  errno = EINTR;
  return true;
}

class Epoll final : public Descriptor {
 public:
  uint32_t Ready() const override {
    return std::any_of(watched_.begin(), watched_.end(), [](const auto& each) { return Pending(each) != 0; })
               ? uint32_t{EPOLLIN}
               : 0;
  }
  int Control(int operation, int fd, const epoll_event* event) {
    if (operation == EPOLL_CTL_DEL) {
      watched_.erase(fd);
    } else {
      watched_[fd] = *event;
    }
    return 0;
  }
  int Take(epoll_event* events, int most) const {
    int count = 0;
    for (const auto& each : watched_) {
      const uint32_t pending = Pending(each);
      if (pending != 0 && count < most) events[count++] = {pending, each.second.data};
    }
    return count;
  }

 private:
  static uint32_t Pending(const std::pair<const int, epoll_event>& watched) {
    const Descriptor* const descriptor = Network::Get().Find(watched.first);
    return descriptor ? descriptor->Ready() & (watched.second.events | EPOLLERR | EPOLLHUP) : 0;
  }

  std::map<int, epoll_event> watched_;
};

// Waits until an event of the descriptor is pending. Returns false if the time passes first.
bool AwaitEvent(const Descriptor& descriptor, Nanoseconds until) {
  while (descriptor.Ready() == 0) {
    if (Scheduler::Get().now() >= until) return false;
    Scheduler::Get().Block(Network::KeyOf(*descriptor.owner), until);
  }
  return true;
}

template <typename Kind>
Kind* FindAs(int fd) {
  Kind* const found = dynamic_cast<Kind*>(Network::Get().Find(fd));
  if (found == nullptr) errno = EBADF;
  return found;
}

ssize_t SendOn(int fd, const iovec* vectors, size_t count) {
  if (IsInterrupted()) return -1;
  Descriptor* const descriptor = Network::Get().Find(fd);
  return descriptor == nullptr ? -1 : descriptor->Send(vectors, count);
}

ssize_t ReceiveOn(int fd, const iovec* vectors, size_t count) {
  if (IsInterrupted()) return -1;
  Descriptor* const descriptor = Network::Get().Find(fd);
  return descriptor == nullptr ? -1 : descriptor->Receive(vectors, count);
}

// Sends the packets of one msghdr. With UDP_SEGMENT, the msghdr holds several packets that the sender has joined.
ssize_t SendPackets(UdpSocket& socket, const msghdr& message) {
  size_t part = message.msg_iov->iov_len;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&message), control)) {
    if (control->cmsg_level != IPPROTO_UDP || control->cmsg_type != kUdpSegment) continue;
    uint16_t bytes;
    std::memcpy(&bytes, CMSG_DATA(control), sizeof(bytes));
    part = bytes;
  }
  auto* const bytes = static_cast<char*>(message.msg_iov->iov_base);
  for (size_t at = 0; at < message.msg_iov->iov_len; at += part) {
    const iovec packet{bytes + at, std::min(part, message.msg_iov->iov_len - at)};
    if (socket.Send(&packet, 1) < 0 && at == 0) return -1;  // the kernel drops the rest of a joined message
  }
  return static_cast<ssize_t>(message.msg_iov->iov_len);
}

sockaddr_in AddressOf(const Address& address) {
  sockaddr_in found{};
  found.sin_family = AF_INET;
  found.sin_port = htons(9000);
  found.sin_addr.s_addr = htonl(10u << 24 | address.rail << 16 | address.host << 8 | 1);
  return found;
}

}  // namespace
}  // namespace jaxcomm::simulated

namespace simulated = jaxcomm::simulated;
using simulated::Nanoseconds;
using simulated::Network;
using simulated::Scheduler;

#define JAXCOMM_DESCRIPTOR_CALL(result, name, parameters, ...)               \
  extern "C" __attribute__((visibility("default"))) result name parameters { \
    static const auto real = simulated::Real<result(*) parameters>(#name);   \
    if (!simulated::IsSimulated(fd)) return real(__VA_ARGS__);               \
    const simulated::InSystem in_system;

JAXCOMM_DESCRIPTOR_CALL(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), fd, message, flags)
return simulated::SendOn(fd, message->msg_iov, message->msg_iovlen);
}

JAXCOMM_DESCRIPTOR_CALL(ssize_t, recvmsg, (int fd, msghdr* message, int flags), fd, message, flags)
return simulated::ReceiveOn(fd, message->msg_iov, message->msg_iovlen);
}

JAXCOMM_DESCRIPTOR_CALL(ssize_t, send, (int fd, const void* bytes, size_t size, int flags), fd, bytes, size, flags)
const iovec vector{const_cast<void*>(bytes), size};
return simulated::SendOn(fd, &vector, 1);
}

JAXCOMM_DESCRIPTOR_CALL(ssize_t, recv, (int fd, void* bytes, size_t size, int flags), fd, bytes, size, flags)
const iovec vector{bytes, size};
return simulated::ReceiveOn(fd, &vector, 1);
}

JAXCOMM_DESCRIPTOR_CALL(ssize_t, write, (int fd, const void* bytes, size_t size), fd, bytes, size)
const iovec vector{const_cast<void*>(bytes), size};
return simulated::SendOn(fd, &vector, 1);
}

JAXCOMM_DESCRIPTOR_CALL(ssize_t, read, (int fd, void* bytes, size_t size), fd, bytes, size)
const iovec vector{bytes, size};
return simulated::ReceiveOn(fd, &vector, 1);
}

JAXCOMM_DESCRIPTOR_CALL(int, sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags), fd, messages, count,
                        flags)
if (simulated::IsInterrupted()) return -1;
auto* const socket = simulated::FindAs<simulated::UdpSocket>(fd);
if (socket == nullptr) return -1;
for (unsigned i = 0; i < count; ++i) {
  const ssize_t sent = simulated::SendPackets(*socket, messages[i].msg_hdr);
  if (sent < 0) return i > 0 ? static_cast<int>(i) : -1;
  messages[i].msg_len = static_cast<unsigned>(sent);
}
return static_cast<int>(count);
}

JAXCOMM_DESCRIPTOR_CALL(int, recvmmsg, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout), fd,
                        messages, count, flags, timeout)
if (simulated::IsInterrupted()) return -1;
auto* const socket = simulated::FindAs<simulated::UdpSocket>(fd);
if (socket == nullptr) return -1;
for (unsigned i = 0; i < count; ++i) {
  simulated::UdpSocket::Datagram datagram;
  if (!socket->Take(&datagram)) return i > 0 ? static_cast<int>(i) : -1;
  msghdr& message = messages[i].msg_hdr;
  const size_t size = std::min(datagram.bytes.size(), message.msg_iov->iov_len);
  std::memcpy(message.msg_iov->iov_base, datagram.bytes.data(), size);
  messages[i].msg_len = static_cast<unsigned>(size);
  auto* const control = static_cast<cmsghdr*>(message.msg_control);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SO_TIMESTAMPNS;
  control->cmsg_len = CMSG_LEN(sizeof(timespec));
  const Nanoseconds arrived = datagram.arrived;
  const timespec stamp{arrived / simulated::kSecond, arrived % simulated::kSecond};
  std::memcpy(CMSG_DATA(control), &stamp, sizeof(stamp));
  message.msg_controllen = CMSG_SPACE(sizeof(timespec));
}
return static_cast<int>(count);
}

JAXCOMM_DESCRIPTOR_CALL(int, shutdown, (int fd, int how), fd, how)
auto* const socket = simulated::FindAs<simulated::TcpSocket>(fd);
if (socket == nullptr) return -1;
socket->Shutdown();
return 0;
}

JAXCOMM_DESCRIPTOR_CALL(int, setsockopt, (int fd, int level, int option, const void* value, socklen_t size), fd, level,
                        option, value, size)
if (level == SOL_SOCKET && option == SO_LINGER) {
  auto* const socket = simulated::FindAs<simulated::TcpSocket>(fd);
  if (socket != nullptr) socket->ResetAtClose();
}
return 0;
}

JAXCOMM_DESCRIPTOR_CALL(int, getsockopt, (int fd, int level, int option, void* value, socklen_t* size), fd, level,
                        option, value, size)
auto* const tcp = dynamic_cast<simulated::TcpSocket*>(Network::Get().Find(fd));
if (level == SOL_SOCKET && option == SO_TYPE) {
  *static_cast<int*>(value) = tcp != nullptr ? SOCK_STREAM : SOCK_DGRAM;
  return 0;
}
if (level == IPPROTO_TCP && option == TCP_INFO && tcp != nullptr) {
  tcp->Describe(static_cast<tcp_info*>(value));
  return 0;
}
errno = ENOPROTOOPT;
return -1;
}

JAXCOMM_DESCRIPTOR_CALL(int, getpeername, (int fd, sockaddr* address, socklen_t* size), fd, address, size)
const auto* const tcp = dynamic_cast<simulated::TcpSocket*>(Network::Get().Find(fd));
const auto* const udp = dynamic_cast<simulated::UdpSocket*>(Network::Get().Find(fd));
if (tcp == nullptr && udp == nullptr) {
  errno = ENOTSOCK;
  return -1;
}
const sockaddr_in found = simulated::AddressOf(tcp != nullptr ? tcp->peer_address : udp->peer_address);
std::memcpy(address, &found, sizeof(found));
*size = sizeof(found);
return 0;
}

JAXCOMM_DESCRIPTOR_CALL(int, epoll_ctl, (int fd, int operation, int watched, epoll_event* event), fd, operation,
                        watched, event)
auto* const epoll = simulated::FindAs<simulated::Epoll>(fd);
return epoll == nullptr ? -1 : epoll->Control(operation, watched, event);
}

JAXCOMM_DESCRIPTOR_CALL(int, epoll_wait, (int fd, epoll_event* events, int most, int milliseconds), fd, events, most,
                        milliseconds)
if (simulated::IsInterrupted()) return -1;
auto* const epoll = simulated::FindAs<simulated::Epoll>(fd);
if (epoll == nullptr) return -1;
const Nanoseconds until =
    milliseconds < 0 ? simulated::kNever : Scheduler::Get().now() + milliseconds * simulated::kMillisecond;
return simulated::AwaitEvent(*epoll, until) ? epoll->Take(events, most) : 0;
}

extern "C" __attribute__((visibility("default"))) int ppoll(pollfd* polled, nfds_t count, const timespec* timeout,
                                                            const sigset_t* mask) {
  static const auto real = simulated::Real<int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*)>("ppoll");
  if (count != 1 || !simulated::IsSimulated(polled->fd)) return real(polled, count, timeout, mask);
  const simulated::InSystem in_system;
  if (simulated::IsInterrupted()) return -1;
  auto* const epoll = simulated::FindAs<simulated::Epoll>(polled->fd);
  if (epoll == nullptr) return -1;
  const Nanoseconds until = timeout == nullptr
                                ? simulated::kNever
                                : Scheduler::Get().now() + timeout->tv_sec * simulated::kSecond + timeout->tv_nsec;
  polled->revents = simulated::AwaitEvent(*epoll, until) ? POLLIN : 0;
  return polled->revents != 0 ? 1 : 0;
}

extern "C" __attribute__((visibility("default"))) int poll(pollfd* polled, nfds_t count, int milliseconds) {
  static const auto real = simulated::Real<int (*)(pollfd*, nfds_t, int)>("poll");
  if (count != 1 || !simulated::IsSimulated(polled->fd)) return real(polled, count, milliseconds);
  const timespec timeout{milliseconds / 1000, milliseconds % 1000 * simulated::kMillisecond};
  return ppoll(polled, count, milliseconds < 0 ? nullptr : &timeout, nullptr);
}

JAXCOMM_SYSTEM_CALL(int, epoll_create1, (int flags), flags)
return Network::Get().Add(std::make_shared<simulated::Epoll>(), *Scheduler::current()->process);
}

JAXCOMM_SYSTEM_CALL(int, eventfd, (unsigned count, int flags), count, flags)
return Network::Get().Add(std::make_shared<simulated::EventFd>(), *Scheduler::current()->process);
}

extern "C" __attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) noexcept {
  static const auto real = simulated::Real<int (*)(int, unsigned long, ...)>("ioctl");
  va_list list;
  va_start(list, request);
  void* const value = va_arg(list, void*);
  va_end(list);
  if (!simulated::IsSimulated(fd)) return real(fd, request, value);
  const auto* const socket = simulated::FindAs<simulated::TcpSocket>(fd);
  if (socket == nullptr) return -1;
  *static_cast<int*>(value) = socket->queued();
  return 0;
}

extern "C" __attribute__((visibility("default"))) int fcntl(int fd, int command, ...) {
  static const auto real = simulated::Real<int (*)(int, int, ...)>("fcntl");
  va_list list;
  va_start(list, command);
  void* const value = va_arg(list, void*);
  va_end(list);
  return simulated::IsSimulated(fd) ? 0 : real(fd, command, value);
}

extern "C" __attribute__((visibility("default"))) int close(int fd) {
  static const auto real = simulated::Real<int (*)(int)>("close");
  const simulated::InSystem in_system;
  if (simulated::IsSimulated(fd)) return Network::Get().Close(fd);
  if (Scheduler::current() != nullptr) simulated::ForgetFile(fd);
  return real(fd);
}

extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  static const auto real = simulated::Real<int (*)(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const int mode = va_arg(list, int);
  va_end(list);
  const int fd = real(path, flags, mode);
  const simulated::InSystem in_system;
  if (Scheduler::current() != nullptr) simulated::OwnFile(fd);
  return fd;
}

extern "C" __attribute__((visibility("default"))) int memfd_create(const char* name, unsigned flags) noexcept {
  static const auto real = simulated::Real<int (*)(const char*, unsigned)>("memfd_create");
  const int fd = real(name, flags);
  const simulated::InSystem in_system;
  if (Scheduler::current() != nullptr) simulated::OwnFile(fd);
  return fd;
}

JAXCOMM_SYSTEM_CALL(ssize_t, process_vm_readv,
                    (pid_t pid, const iovec* mine, unsigned long own_count, const iovec* its, unsigned long its_count,
                     unsigned long flags),
                    pid, mine, own_count, its, its_count, flags)
return simulated::ReadMemory(pid, mine, own_count, its, its_count);
}

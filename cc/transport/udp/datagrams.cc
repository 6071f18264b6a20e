#include "cc/transport/udp/datagrams.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace jaxcomm {
namespace {

// Constants of linux/udp.h that older headers lack.
constexpr int kUdpSegment = 103, kUdpGro = 104;
// A run is a sequence of packets that the kernel takes as one datagram and splits. These are the maximum numbers of
// bytes and packets in a run.
constexpr size_t kMaxRunBytes = 65000, kMaxRun = 64;
constexpr size_t kMaxRuns = 64;     // maximum number of runs in one system call
constexpr int kSendRoom = 1 << 20;  // bytes of the send buffer: acknowledgements must fit behind a window of packets

bool SetFragmenting(int socket, int value) {
  return setsockopt(socket, IPPROTO_IP, IP_MTU_DISCOVER, &value, sizeof(value)) == 0 ||
         setsockopt(socket, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value, sizeof(value)) == 0;
}

// Returns how many packets, beginning with packet `first`, the kernel can handle as one. These packets have equal
// sizes, except that the last packet may be smaller.
size_t RunOf(const std::vector<size_t>& sizes, size_t first, bool may_batch) {
  if (!may_batch) return 1;
  size_t count = 1, bytes = sizes[first];
  while (first + count < sizes.size() && count < kMaxRun && sizes[first + count] <= sizes[first] &&
         bytes + sizes[first + count] <= kMaxRunBytes) {
    bytes += sizes[first + count++];
    if (sizes[first + count - 1] < sizes[first]) break;
  }
  return count;
}

// Returns whether to repeat the system call after an error. The call is repeated if the error does not concern the
// packets of this call, or if this function has changed an option to avoid the error.
bool IsCured(int socket, int error, DatagramOptions* options) {
  // ECONNREFUSED comes from an ICMP reply to an earlier packet. The reply may be forged.
  if (error == EINTR || error == ECONNREFUSED) return true;
  if (!options->may_batch) {
    const bool is_marked = options->may_mark && (error == EINVAL || error == EPERM || error == EOPNOTSUPP);
    return is_marked && !(options->may_mark = false);
  }
  if (error == EMSGSIZE) return options->may_batch = false, SetFragmenting(socket, IP_PMTUDISC_DONT);
  if (error == EIO || error == EINVAL || error == EOPNOTSUPP) return options->may_batch = false, true;
  return false;
}

}  // namespace

Status PrepareDatagrams(int socket, DatagramOptions* options) {
  const auto set = [socket](int level, int option, int value) {
    return setsockopt(socket, level, option, &value, sizeof(value)) == 0;
  };
  int type = 0;
  socklen_t type_length = sizeof(type);
  sockaddr_storage peer;
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &type_length) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) != 0) {
    return InvalidArgument(std::string("not a connected UDP socket: ") + std::strerror(errno));
  }
  if (type != SOCK_DGRAM || (peer.ss_family != AF_INET && peer.ss_family != AF_INET6)) {
    return InvalidArgument("not a UDP socket");
  }
  options->is_ipv6 = peer.ss_family == AF_INET6;
  set(SOL_SOCKET, SO_TIMESTAMPNS, 1);
  set(IPPROTO_UDP, kUdpGro, 1);
  set(SOL_SOCKET, SO_SNDBUF, kSendRoom);
  SetFragmenting(socket, IP_PMTUDISC_DO);
  return Status();
}

size_t SendDatagrams(int socket, const std::byte* bytes, const std::vector<size_t>& sizes, TrafficClass traffic_class,
                     DatagramOptions* options) {
  constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint16_t));
  alignas(cmsghdr) std::array<std::array<char, kControlBytes>, kMaxRuns> controls;
  std::array<iovec, kMaxRuns> vectors;
  std::array<mmsghdr, kMaxRuns> messages;
  std::array<size_t, kMaxRuns> runs;
  size_t sent = 0;
  while (sent < sizes.size()) {
    size_t count = 0;
    const std::byte* from = bytes;
    for (size_t packet = sent; packet < sizes.size() && count < kMaxRuns; packet += runs[count++]) {
      runs[count] = RunOf(sizes, packet, options->may_batch);
      size_t run_bytes = 0;
      for (size_t i = 0; i < runs[count]; ++i) run_bytes += sizes[packet + i];
      vectors[count] = {const_cast<std::byte*>(from), run_bytes};  // sendmmsg only reads the bytes
      from += run_bytes;
      msghdr& message = messages[count].msg_hdr;
      message = msghdr{};
      message.msg_iov = &vectors[count];
      message.msg_iovlen = 1;
      controls[count].fill(0);
      size_t control_bytes = 0;
      const auto add = [&](int level, int type, const auto& value) {
        auto* const control = reinterpret_cast<cmsghdr*>(controls[count].data() + control_bytes);
        control->cmsg_level = level;
        control->cmsg_type = type;
        control->cmsg_len = CMSG_LEN(sizeof(value));
        std::memcpy(CMSG_DATA(control), &value, sizeof(value));
        control_bytes += CMSG_SPACE(sizeof(value));
      };
      if (options->may_mark) {
        add(options->is_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, options->is_ipv6 ? IPV6_TCLASS : IP_TOS,
            traffic_class.byte());
      }
      if (runs[count] > 1) add(IPPROTO_UDP, kUdpSegment, static_cast<uint16_t>(sizes[packet]));
      if (control_bytes == 0) continue;
      message.msg_control = controls[count].data();
      message.msg_controllen = control_bytes;
    }
    const int done = sendmmsg(socket, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (done < 0 && (errno == EAGAIN || errno == ENOBUFS)) break;
    if (done < 0 && IsCured(socket, errno, options)) continue;
    const size_t gone = done < 0 ? 1 : static_cast<size_t>(done);
    for (size_t run = 0; run < gone; ++run) {
      bytes += vectors[run].iov_len;
      sent += runs[run];
    }
  }
  return sent;
}

ReceivedDatagrams::ReceivedDatagrams() : memory_(new std::byte[kSlots * kSlotBytes]) {}

const std::vector<Datagram>& ReceivedDatagrams::Receive(int socket) {
  alignas(cmsghdr) std::array<std::array<char, kControlBytes>, kSlots> controls;
  std::array<iovec, kSlots> vectors;
  std::array<mmsghdr, kSlots> messages;
  for (size_t i = 0; i < kSlots; ++i) {
    vectors[i] = {memory_.get() + i * kSlotBytes, kSlotBytes};
    messages[i] = mmsghdr{};
    messages[i].msg_hdr.msg_iov = &vectors[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_control = controls[i].data();
    messages[i].msg_hdr.msg_controllen = controls[i].size();
  }
  datagrams_.clear();
  int count;
  do count = recvmmsg(socket, messages.data(), kSlots, MSG_DONTWAIT, nullptr);
  while (count < 0 && (errno == EINTR || errno == ECONNREFUSED));
  may_have_more_ = count == static_cast<int>(kSlots);
  const int64_t now = WallClock();
  for (int i = 0; i < count; ++i) {
    msghdr& message = messages[static_cast<size_t>(i)].msg_hdr;
    const size_t size = messages[static_cast<size_t>(i)].msg_len;
    size_t part = size;
    int64_t arrived = now;
    for (cmsghdr* control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control)) {
      if (control->cmsg_level == IPPROTO_UDP && control->cmsg_type == kUdpGro) {
        int found = 0;
        std::memcpy(&found, CMSG_DATA(control), sizeof(found));
        part = static_cast<size_t>(std::max(found, 1));
      } else if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SO_TIMESTAMPNS) {
        timespec at;
        std::memcpy(&at, CMSG_DATA(control), sizeof(at));
        arrived = at.tv_sec * int64_t{1000000000} + at.tv_nsec;
      }
    }
    auto* const bytes = static_cast<std::byte*>(message.msg_iov->iov_base);
    size_t at = 0;
    do {
      datagrams_.push_back({bytes + at, std::min(part, size - at), arrived});
      at += part;
    } while (at < size);
  }
  return datagrams_;
}

int64_t WallClock() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

}  // namespace jaxcomm

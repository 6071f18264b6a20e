#include "cc/transport/socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "cc/base/text.h"

namespace jaxcomm {
namespace {

// While the peer's receive window is closed, the kernel sends probes at growing intervals. The peer's host counts as
// silent only after this number of unanswered probes, because a few may get lost.
constexpr int kLeastProbes = 3;
constexpr char kMtuCure[] =
    "give the interfaces and switches on the path the same MTU (ip link set DEVICE mtu BYTES), or let the firewalls "
    "pass ICMP's \"fragmentation needed\"";

}  // namespace

Status PrepareSocket(int socket) {
  const auto set = [socket](int level, int option, int value) {
    return setsockopt(socket, level, option, &value, sizeof(value)) == 0;
  };
  sockaddr_storage peer;
  socklen_t length = sizeof(peer);
  // The kernel sends keepalive probes only while it sends no data, and gives up after kSilence. TCP_USER_TIMEOUT stays
  // unset, because it would also end a connection to a process that reads nothing for a while. The sizes of the buffers
  // stay unset, because the kernel no longer enlarges a buffer whose size was set.
  constexpr int kProbe = 1;  // seconds; much shorter than kSilence, because some probes may get lost
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) == 0 && set(IPPROTO_TCP, TCP_NODELAY, 1) &&
      set(SOL_SOCKET, SO_KEEPALIVE, 1) && set(IPPROTO_TCP, TCP_KEEPIDLE, kProbe) &&
      set(IPPROTO_TCP, TCP_KEEPINTVL, kProbe) &&
      set(IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(kSilence.count()) / kProbe - 1)) {
    return Status();
  }
  return InvalidArgument(std::string("no connected TCP socket: ") + std::strerror(errno));
}

std::optional<std::string> ConnectionWatch::Look(int socket, std::chrono::nanoseconds since,
                                                 std::chrono::nanoseconds limit) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  int queued = 0;
  ioctl(socket, SIOCOUTQ, &queued);
  const bool is_under_way = info.tcpi_unacked > 0 && info.tcpi_snd_wnd > 0;
  // A host that receives no packets may still send some. While bytes are in flight, only an acknowledgement of these
  // bytes therefore counts as an answer.
  const bool has_answered = is_under_way ? info.tcpi_bytes_acked != acknowledged_
                                         : std::chrono::milliseconds(info.tcpi_last_ack_recv) < since;
  acknowledged_ = info.tcpi_bytes_acked;
  if (has_answered || !(is_under_way || info.tcpi_probes >= (queued > 0 ? kLeastProbes : 1))) return std::nullopt;
  const bool is_long = int64_t{queued} - info.tcpi_notsent_bytes >= info.tcpi_snd_mss;
  if (is_long && info.tcpi_sacked > 0) return DescribeLongLost(info.tcpi_snd_mss, PeerAddress(socket), limit);
  std::string why = "its host has not answered for " + FormatSeconds(limit);
  if (is_long) {
    why += "; if it does answer pings, packets of " + std::to_string(info.tcpi_snd_mss) +
           " bytes may be too long for the path to " + PeerAddress(socket) + ": then " + kMtuCure;
  }
  return why;
}

std::string DescribeLongLost(uint32_t bytes, const std::string& address, std::chrono::nanoseconds limit) {
  return "for " + FormatSeconds(limit) + " no packet of " + std::to_string(bytes) + " bytes has reached " + address +
         ", while smaller ones have; " + kMtuCure;
}

SendProgress ProgressOf(int socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const bool recovers = info.tcpi_ca_state == TCP_CA_Recovery || info.tcpi_ca_state == TCP_CA_Loss;
  return {info.tcpi_bytes_acked, info.tcpi_snd_wnd > 0 ? info.tcpi_unacked : 0,
          recovers && info.tcpi_sacked > 0 && info.tcpi_retrans > 0};
}

void ResetAtClose(int socket) {
  const linger now{1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

std::string PeerAddress(int socket) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  char text[NI_MAXHOST] = "an unknown address";
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&peer), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  }
  return text;
}

std::string DescribeEnd(int error) {
  switch (error) {
    case 0:
      return "connection closed";
    case ECONNRESET:
    case EPIPE:
      return "connection reset";
    case ETIMEDOUT:
      return "its host has not answered for " + FormatSeconds(kSilence);
    default:
      return std::string("connection failed: ") + std::strerror(error);
  }
}

}  // namespace jaxcomm

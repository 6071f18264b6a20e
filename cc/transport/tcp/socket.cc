#include "cc/transport/tcp/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "cc/base/text.h"

namespace jaxcomm {

Status PrepareSocket(int socket) {
  const auto set = [socket](int level, int option, int value) {
    return setsockopt(socket, level, option, &value, sizeof(value)) == 0;
  };
  sockaddr_storage peer;
  socklen_t length = sizeof(peer);
  // TCP_USER_TIMEOUT would also end a connection whose other side answers, but reads nothing. The sizes of its buffers
  // are the kernel's to choose: once set, they no longer grow.
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) == 0 && set(IPPROTO_TCP, TCP_NODELAY, 1) &&
      set(SOL_SOCKET, SO_KEEPALIVE, 1) && set(IPPROTO_TCP, TCP_KEEPIDLE, 2) && set(IPPROTO_TCP, TCP_KEEPINTVL, 2) &&
      set(IPPROTO_TCP, TCP_KEEPCNT, static_cast<int>(kSilence.count() / 2 - 1))) {
    return Status();
  }
  return InvalidArgument(std::string("no connected TCP socket: ") + std::strerror(errno));
}

bool IsSilent(int socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         (info.tcpi_unacked > 0 || info.tcpi_probes > 0) &&
         std::chrono::milliseconds(info.tcpi_last_ack_recv) >= kSilence;
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

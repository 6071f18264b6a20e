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
  const auto milliseconds = std::chrono::milliseconds(kSilence).count();
  sockaddr_storage peer;
  socklen_t length = sizeof(peer);
  // A timeout of unanswered probes is kSilence, too, so their number is of no account. The sizes of its buffers are the
  // kernel's to choose: once set, they no longer grow.
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
      fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) == 0 && set(IPPROTO_TCP, TCP_NODELAY, 1) &&
      set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds)) && set(SOL_SOCKET, SO_KEEPALIVE, 1) &&
      set(IPPROTO_TCP, TCP_KEEPIDLE, 2) && set(IPPROTO_TCP, TCP_KEEPINTVL, 2)) {
    return Status();
  }
  return InvalidArgument(std::string("no connected TCP socket: ") + std::strerror(errno));
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

// Preloaded into a process, makes the TCP sockets that it opens while `mptcp` is 1 MPTCP's.
//
//   cc -shared -fPIC -o build/mptcp.so benchmarks/mptcp.c
//   LD_PRELOAD=build/mptcp.so python ...    // where benchmarks/mptcp.py sets it

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int mptcp = 0;

int socket(int domain, int type, int protocol) {
  const int stream = domain == AF_INET && (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;
  return syscall(SYS_socket, domain, type, mptcp && stream ? IPPROTO_MPTCP : protocol);
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t bytes) {
  const int result = syscall(SYS_setsockopt, fd, level, name, value, bytes);
  // Gloo sets this on connected sockets, too, and ends the process where that fails, as it does with MPTCP.
  return result && errno == EINVAL && level == SOL_SOCKET && name == SO_REUSEADDR ? 0 : result;
}

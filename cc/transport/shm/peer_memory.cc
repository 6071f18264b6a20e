#include "cc/transport/shm/peer_memory.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace jaxcomm::shm {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;

// Runs in a child that shares this process's memory. The child may be killed by the call.
int ReadNothing(void*) {
  syscall(SYS_process_vm_readv, getppid(), nullptr, 0, nullptr, 0, 0);
  _exit(0);
}

// Whether the system call may be made at all.
bool IsAllowed() {
  alignas(16) char stack[16 << 10];
  // Without a signal at its end, the child is invisible to the program's own handling of children.
  const pid_t child = clone(ReadNothing, stack + sizeof(stack), CLONE_VM | CLONE_VFORK, nullptr);
  if (child < 0) return false;
  int status = 0;
  while (waitpid(child, &status, __WCLONE) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status);
}

}  // namespace

bool PeerMemory::CanRead() const {
  return IsAllowed() && Read(nullptr, nullptr, 0);
}

bool PeerMemory::Read(const std::byte* from, std::byte* to, int64_t bytes) const {
  int64_t read = 0;
  do {
    const int64_t piece = std::min(bytes - read, kPiece);
    uint64_t nonce = 0;
    const iovec mine[] = {{to + read, static_cast<size_t>(piece)}, {&nonce, sizeof(nonce)}};
    const iovec its[] = {{const_cast<std::byte*>(from) + read, static_cast<size_t>(piece)},
                         {reinterpret_cast<void*>(nonce_at_), sizeof(nonce)}};
    const ssize_t done = process_vm_readv(pid_, mine, 2, its, 2, 0);
    if (done != static_cast<ssize_t>(piece + static_cast<int64_t>(sizeof(nonce))) || nonce != nonce_) return false;
    read += piece;
  } while (read < bytes);
  return true;
}

}  // namespace jaxcomm::shm

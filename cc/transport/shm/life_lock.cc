#include "cc/transport/shm/life_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "cc/base/own_descriptors.h"

namespace jaxcomm::shm {
namespace {

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Result<std::unique_ptr<LifeLock>> LifeLock::Take(int fd) {
  // OpenOwn makes forked children close the descriptor. A copy in a child would keep the lock.
  const int own = OpenOwn([&] { return open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC); });
  struct flock lock = WholeFile();
  if (own < 0 || fcntl(own, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    CloseOwn(own);
    return InvalidArgument(std::string("the memory of this process cannot be locked: ") + std::strerror(error) +
                           ".\n  Cure: mount /proc, and run Linux 3.17 or newer.");
  }
  return std::make_unique<LifeLock>(own);
}

LifeLock::~LifeLock() { CloseOwn(fd_); }

bool IsLocked(int fd) {
  struct flock lock = WholeFile();
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace jaxcomm::shm

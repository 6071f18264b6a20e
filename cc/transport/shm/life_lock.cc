#include "cc/transport/shm/life_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace jaxcomm::shm {
namespace {

// The locks of this process. Never destroyed: a fork may come at any time.
struct Locks {
  std::mutex mutex;
  std::set<int> fds;

  static Locks& Get() {
    static Locks* const locks = [] {
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] {
                       for (const int fd : Get().fds) close(fd);
                       Get().fds.clear();
                       Get().mutex.unlock();
                     });
      return std::make_unique<Locks>().release();
    }();
    return *locks;
  }
};

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Result<std::unique_ptr<LifeLock>> LifeLock::Take(int fd) {
  Locks& locks = Locks::Get();
  std::lock_guard<std::mutex> guard(locks.mutex);  // no fork between open and insert
  const int own = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock = WholeFile();
  if (own < 0 || fcntl(own, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    if (own >= 0) close(own);
    return InvalidArgument(std::string("the memory of this process cannot be locked: ") + std::strerror(error) +
                           ".\n  Cure: mount /proc, and run Linux 3.17 or newer.");
  }
  locks.fds.insert(own);
  return std::make_unique<LifeLock>(own);
}

LifeLock::~LifeLock() {
  Locks& locks = Locks::Get();
  std::lock_guard<std::mutex> guard(locks.mutex);
  if (locks.fds.erase(fd_) != 0) close(fd_);  // a forked child has closed it
}

bool IsLocked(int fd) {
  struct flock lock = WholeFile();
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace jaxcomm::shm

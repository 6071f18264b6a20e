// Registers descriptors, so that forked children of this process close them.
//
//   CloseInChildren(socket);              // for a descriptor that was just opened or taken over
//   OpenOwn([] { return open(...); });    // if no child may inherit the descriptor before it is registered
//   CloseOwn(socket);                     // instead of close
//
// A forked child may outlive this process. If the child held a descriptor open, other processes would not notice the
// end of this process. There is no flag that closes descriptors at fork, as O_CLOEXEC does at exec. Thread-safe.
// Ignores negative descriptors.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>

namespace jaxcomm {
namespace own_descriptors {

// The registry is never destroyed, because a fork may happen at any time.
struct Registry {
  std::mutex mutex;
  std::set<int> fds;

  static Registry& Get() {
    static Registry* const registry = [] {
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] {
                       for (const int fd : Get().fds) close(fd);
                       Get().fds.clear();
                       Get().mutex.unlock();
                     });
      return std::make_unique<Registry>().release();
    }();
    return *registry;
  }
};

}  // namespace own_descriptors

template <typename Open>
int OpenOwn(const Open& open) {
  auto& registry = own_descriptors::Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  const int fd = open();
  if (fd >= 0) registry.fds.insert(fd);
  return fd;
}

inline void CloseInChildren(int fd) {
  OpenOwn([fd] { return fd; });
}

// Does nothing in a forked child, because the child has closed the descriptor.
inline void CloseOwn(int fd) {
  auto& registry = own_descriptors::Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (registry.fds.erase(fd) != 0) close(fd);
}

}  // namespace jaxcomm

// Descriptors of this process alone: children that it forks close them.
//
//   CloseInChildren(socket);              // one that has just been opened, or taken over
//   OpenOwn([] { return open(...); });    // where no child may copy it in between
//   CloseOwn(socket);   // in place of close
//
// A child may outlive the process, and what it holds open would hide the process's end from others. There is no flag
// for this as there is for exec. Thread-safe. Negative descriptors are ignored.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>

namespace jaxcomm {
namespace own_descriptors {

// Never destroyed: a fork may come at any time.
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

// In a forked child, which has closed it, this does nothing.
inline void CloseOwn(int fd) {
  auto& registry = own_descriptors::Registry::Get();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (registry.fds.erase(fd) != 0) close(fd);
}

}  // namespace jaxcomm

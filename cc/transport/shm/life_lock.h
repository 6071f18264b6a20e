// Locks this process's memory file to show other processes that this process is alive. The lock ends with the process,
// however the process ends.
//
//   Result<std::unique_ptr<LifeLock>> lock = LifeLock::Take(fd);
//
// The lock has its own open file description, so other descriptors of the file may be passed on and closed. Forked
// children close their copy of the descriptor of the lock.
#pragma once

#include <memory>

#include "cc/base/status.h"

namespace jaxcomm::shm {

class LifeLock {
 public:
  static Result<std::unique_ptr<LifeLock>> Take(int fd);
  explicit LifeLock(int fd) : fd_(fd) {}
  ~LifeLock();
  LifeLock(const LifeLock&) = delete;
  LifeLock& operator=(const LifeLock&) = delete;

 private:
  const int fd_;
};

// Returns true while a process holds a LifeLock on the file.
bool IsLocked(int fd);

}  // namespace jaxcomm::shm

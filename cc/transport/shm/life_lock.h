// Shows other processes that this one lives: a lock on its memory file, which ends with the process however that ends.
//
//   Result<std::unique_ptr<LifeLock>> lock = LifeLock::Take(fd);   // while it lives, IsLocked(fd of the same file)
//
// It belongs to an open file of its own, so other descriptors of the memory may be passed on and closed, and children
// that this process forks close it.
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

bool IsLocked(int fd);

}  // namespace jaxcomm::shm

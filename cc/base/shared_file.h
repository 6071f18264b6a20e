// A file in memory that several processes of a host map: zeros when it is first opened.
//
//   Result<void*> memory = MapSharedFile("/dev/shm/…", bytes);   // munmap ends it; unlink takes its name away
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "cc/base/status.h"

namespace jaxcomm {

inline Result<void*> MapSharedFile(const std::string& path, size_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  // Growing gives zeros, and does nothing where another process has done it.
  void* const memory = file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                           : MAP_FAILED;
  const int error = errno;
  if (file >= 0) close(file);
  if (memory != MAP_FAILED) return memory;
  return InvalidArgument(path + " cannot be shared: " + std::strerror(error) +
                         ".\n  Cure: give all processes of this host one /dev/shm in which they may write.");
}

}  // namespace jaxcomm

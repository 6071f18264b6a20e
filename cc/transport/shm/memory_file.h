// The memory file of a process, mapped: without a name, so nothing is left of it when the processes have ended.
//
//   Result<std::shared_ptr<MemoryFile>> mine = MemoryFile::Create(process, processes, arena_bytes);
//   Result<std::shared_ptr<MemoryFile>> other = MemoryFile::Open(fd, *mine.value(), process, nonce);   // owns fd
//
// The memory of Create is reserved, and no process can shrink a file that Open accepts: reading it never faults. All
// but the first page of an opened file is for reading only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/base/status.h"
#include "cc/transport/shm/layout.h"

namespace jaxcomm::shm {

class MemoryFile {
 public:
  static Result<std::shared_ptr<MemoryFile>> Create(uint32_t process, uint32_t processes, int64_t arena_bytes);
  static Result<std::shared_ptr<MemoryFile>> Open(int fd, const MemoryFile& mine, uint32_t process, uint64_t nonce);
  MemoryFile(int fd, uint32_t processes, uint32_t slots);  // owns fd; Create and Open go on from here
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  WritablePage& writable() const { return *reinterpret_cast<WritablePage*>(start_); }
  std::atomic<uint32_t>& doorbell() const { return writable().doorbell; }
  FileHeader& header() const { return *reinterpret_cast<FileHeader*>(start_ + kPage); }
  PeerChannel& channel(uint32_t process) const;
  std::byte* slot(uint32_t slot) const { return start_ + slots_at_ + int64_t{slot} * kSlotBytes; }

 private:
  Status Reserve() const;
  bool Map(int protection);

  const int fd_;
  const int64_t slots_at_, bytes_;
  std::byte* start_ = nullptr;
};

}  // namespace jaxcomm::shm

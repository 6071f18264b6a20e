// The mapped memory file of a process. The file has no name, so nothing is left when the processes have ended.
//
//   Result<std::shared_ptr<MemoryFile>> mine = MemoryFile::Create(process, processes, arena_bytes);
//   Result<std::shared_ptr<MemoryFile>> other = MemoryFile::Open(fd, *mine.value(), process, nonce);   // owns fd
//
// Reading a file never faults, because Create reserves the memory and Open accepts only files that no process can
// shrink. An opened file is read-only except for its first part.
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
  MemoryFile(int fd, uint32_t processes, uint32_t slots);  // owns fd; only Create and Open call this
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  WritablePart& writable() const { return *reinterpret_cast<WritablePart*>(start_); }
  // The state of round number `round` for transfers from the file's owner to the process.
  StateWord& transfer_state(uint32_t process, size_t round) const {
    return reinterpret_cast<WritablePart::RoundState*>(start_ + sizeof(WritablePart))[process * kRounds + round].state;
  }
  std::atomic<uint32_t>& doorbell() const { return writable().doorbell; }
  FileHeader& header() const { return *reinterpret_cast<FileHeader*>(start_ + header_at_); }
  PeerChannel& channel(uint32_t process) const;
  std::byte* slot(uint32_t slot) const { return start_ + slots_at_ + int64_t{slot} * kSlotBytes; }

 private:
  Status Reserve() const;
  bool Map(int protection);

  const int fd_;
  const int64_t header_at_, slots_at_, bytes_;
  std::byte* start_ = nullptr;
};

}  // namespace jaxcomm::shm

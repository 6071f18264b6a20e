// The memory of another process, from which this process copies bytes without that process's help.
//
//   PeerMemory memory(header.pid, header.nonce_at, nonce);
//   if (memory.CanRead()) …
//   if (memory.Read(from, to, bytes)) …
//
// Each read also reads the nonce of the process, and fails if the nonce differs, because another process then has the
// pid.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "cc/transport/transport.h"

namespace jaxcomm::shm {

class PeerMemory final : public MemoryReader {
 public:
  PeerMemory(pid_t pid, uint64_t nonce_at, uint64_t nonce) : pid_(pid), nonce_at_(nonce_at), nonce_(nonce) {}

  // Returns whether this process may call process_vm_readv. Tries the call in a child process, because a seccomp filter
  // may kill a process that makes the call.
  static bool IsAllowed();
  // Returns whether the system lets this process read the other process's memory.
  bool CanRead() const;
  bool Read(const std::byte* from, std::byte* to, int64_t bytes) const override;

 private:
  const pid_t pid_;
  const uint64_t nonce_at_, nonce_;
};

}  // namespace jaxcomm::shm

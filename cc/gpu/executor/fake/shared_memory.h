// Memory that other processes can map, each at an address of its own: what the fake runtime gives out as a device's.
//
//   std::byte* memory = SharedMemory::Allocate(bytes);
//   SharedMemory::Handle handle = SharedMemory::HandleOf(memory);   // another process opens it
//   SharedMemory::Free(memory);                                     // ends the process where another has it open
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace fake {

class SharedMemory {
 public:
  struct Handle {
    pid_t process;
    int file;
    size_t bytes;
  };

  static std::byte* Allocate(size_t bytes);
  static Handle HandleOf(const std::byte* memory);
  static void Free(std::byte* memory);

  // Null: the process has ended, or has freed it.
  static std::byte* Open(const Handle& handle);
  static void Close(std::byte* memory);
};

}  // namespace fake

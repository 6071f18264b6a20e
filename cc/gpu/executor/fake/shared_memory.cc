#include "cc/gpu/executor/fake/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

namespace fake {
namespace {

constexpr size_t kPage = 4096;

// The page before the memory.
struct Head {
  SharedMemory::Handle handle;
  std::atomic<int> opened;  // by other processes
};
static_assert(sizeof(Head) <= kPage);

Head& HeadOf(const std::byte* memory) { return *reinterpret_cast<Head*>(const_cast<std::byte*>(memory) - kPage); }

std::byte* Map(int file, size_t bytes) {
  void* const memory = mmap(nullptr, kPage + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory) + kPage;
}

}  // namespace

std::byte* SharedMemory::Allocate(size_t bytes) {
  const int file = memfd_create("device memory", MFD_CLOEXEC);
  std::byte* const memory =
      file >= 0 && ftruncate(file, static_cast<off_t>(kPage + bytes)) == 0 ? Map(file, bytes) : nullptr;
  if (memory == nullptr) std::abort();
  new (memory - kPage) Head{{getpid(), file, bytes}, {0}};
  return memory;
}

SharedMemory::Handle SharedMemory::HandleOf(const std::byte* memory) { return HeadOf(memory).handle; }

void SharedMemory::Free(std::byte* memory) {
  const Handle handle = HandleOf(memory);
  if (HeadOf(memory).opened > 0) {
    std::fprintf(stderr, "freed memory that another process has open\n");
    std::abort();
  }
  close(handle.file);
  munmap(memory - kPage, kPage + handle.bytes);
}

std::byte* SharedMemory::Open(const Handle& handle) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  std::byte* const memory = Map(file, handle.bytes);
  close(file);
  if (memory != nullptr) ++HeadOf(memory).opened;
  return memory;
}

void SharedMemory::Close(std::byte* memory) {
  --HeadOf(memory).opened;
  munmap(memory - kPage, kPage + HeadOf(memory).handle.bytes);
}

}  // namespace fake

// The operators new of the core: no block that they give is smaller than kLeast bytes.
//
// XLA's buffers come from posix_memalign, which leaves up to 112 bytes free beside each of them, and in glibc
// before 2.39 (bug 30723) in a thread's cache. A small object of ours that took such a gap, and another thread that
// released it into its own cache, kept the buffer beside it, once free, too short for another of its size: the process
// grew by a buffer. Larger blocks never lie in a gap.
//
// They are those of the shared object alone, as exports.map hides them; also of libstdc++, where that is linked into
// it. Blocks that are aligned by more than malloc does are large, and left to libstdc++.

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLeast = 120;  // with glibc's own 8 bytes, 128

void* Allocate(std::size_t bytes) {
  void* const block = std::malloc(std::max(bytes, kLeast));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes); }
void* operator new[](std::size_t bytes) { return Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

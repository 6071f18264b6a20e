// operator new for the core: every block has at least kLeast bytes.
//
// XLA's buffers come from posix_memalign, which leaves gaps of up to 112 bytes beside each buffer. glibc before 2.39
// (bug 30723) puts these gaps into a thread's cache. If a small object took such a gap, and another thread released the
// object into its own cache, the gap stayed occupied. When the buffer beside the gap was freed, its memory alone was
// too short for another buffer of the same size, so the process grew by a buffer. Larger blocks never lie in a gap.
//
// exports.map hides these operators. Only this shared object uses them, and libstdc++ if it is linked in. Blocks that
// need a stricter alignment than malloc's are large, and libstdc++ allocates them.

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLeast = 120;  // 128 bytes together with glibc's own 8 bytes

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

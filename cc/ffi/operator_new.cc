// operator new for the core: every block has at least kLeast bytes.
//
// XLA's buffers come from posix_memalign, which leaves gaps of up to 112 bytes beside each buffer. glibc before 2.39
// (bug 30723) puts these gaps into a thread's cache. A small object may take such a gap. If another thread frees the
// object, the gap stays occupied in that thread's cache. When XLA frees the buffer beside the gap, the buffer's memory
// alone is too short for another buffer of the same size, so the process grows. A block of kLeast bytes fits no gap.
//
// exports.map hides these operators, so only this shared object uses them, including a statically linked libstdc++.
// Blocks with a stricter alignment than malloc's come from libstdc++'s operators; such blocks are larger than a gap.

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLeast = 120;  // glibc adds 8 bytes, so a block takes 128 bytes

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

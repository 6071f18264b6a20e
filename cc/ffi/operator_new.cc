// operator new for the core: every block has at least kLeast bytes, and the process ends if memory for a small block
// (small_block.h) has run out.
//
// XLA's buffers come from posix_memalign, which leaves gaps of up to 112 bytes beside each buffer. glibc before 2.39
// (bug 30723) puts these gaps into a thread's cache. A small object may take such a gap. If another thread frees the
// object, that thread's cache keeps the gap. When XLA then frees the buffer beside the gap, posix_memalign cannot place
// a new buffer of the same size there without the gap's bytes, so the process grows. A block of kLeast bytes is too
// large for a gap.
//
// exports.map hides these operators, so only this shared object uses them, including a statically linked libstdc++.
// Blocks with a stricter alignment than malloc's come from libstdc++'s operators; such blocks are larger than a gap.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "cc/base/small_block.h"

namespace {

constexpr std::size_t kLeast = 120;  // in bytes; glibc adds 8 bytes, so the smallest block takes 128 bytes

constexpr char kEnds[] =
    "jaxcomm: this process has no memory left, and ends.\n  Cure: raise the limit on its memory (`ulimit -v`, a "
    "container's).\n";

void* Allocate(std::size_t bytes) {
  void* const block = std::malloc(std::max(bytes, kLeast));
  if (block != nullptr) return block;
  if (bytes >= jaxcomm::kSmallBlock) throw std::bad_alloc();
  if (write(STDERR_FILENO, kEnds, sizeof(kEnds) - 1) < 0) std::abort();
  std::abort();
}

}  // namespace

void* operator new(std::size_t bytes) { return Allocate(bytes); }
void* operator new[](std::size_t bytes) { return Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

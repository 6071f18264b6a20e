#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <memory>
#include <new>

#include "cc/base/small_block.h"

namespace jaxcomm {
namespace {

// The usable bytes of the largest gap beside a posix_memalign buffer with an alignment of 64 bytes. The gap is the
// memory that glibc allocates beyond the buffer: 64 bytes for the alignment, 32 bytes for the smallest possible block,
// and 8 bytes for a header, rounded up to 16. The gap's own header, a size_t, is not usable.
constexpr size_t kLargestGap = 112 - sizeof(size_t);

// Sanitizers replace operator new.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(OperatorNew, NoBlockFitsIntoAGapBesideAnAlignedBuffer) {
  const auto one = std::make_unique<char>();
  const auto some = std::make_unique<char[]>(16);
  EXPECT_GT(malloc_usable_size(one.get()), kLargestGap);
  EXPECT_GT(malloc_usable_size(some.get()), kLargestGap);
}

// Takes small blocks until memory runs out.
void TakeAllMemory() {
  struct Block {
    Block* next;
    char bytes[1000];
  };
  const rlimit limit{64 << 20, 64 << 20};
  setrlimit(RLIMIT_AS, &limit);
  for (Block* last = nullptr;;) last = new Block{last, {}};
}

TEST(OperatorNewDeathTest, ASmallBlockForWhichThereIsNoMemoryEndsTheProcess) {
  EXPECT_DEATH(TakeAllMemory(), "this process has no memory left, and ends");
}

TEST(OperatorNew, ALargeBlockForWhichThereIsNoMemoryIsRefused) {
  std::unique_ptr<char[]> block;
  EXPECT_THROW(block.reset(new char[size_t{1} << 50]), std::bad_alloc);
}

#endif

TEST(OperatorNew, LargeBlocksAreAsLargeAsAskedFor) {
  const auto large = std::make_unique<char[]>(100'000);
  EXPECT_GE(malloc_usable_size(large.get()), 100'000U);
}

}  // namespace
}  // namespace jaxcomm

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>

namespace jaxcomm {
namespace {

// The usable bytes of the largest gap beside a posix_memalign buffer with an alignment of 64 bytes. The gap is the
// memory that glibc allocates beyond the buffer: 64 bytes for the alignment, 32 bytes for a smallest block, and 16
// bytes for a header of 8 bytes, rounded up. The gap's own header, a size_t, is not usable.
constexpr size_t kLargestGap = 112 - sizeof(size_t);

// Sanitizers replace operator new.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(OperatorNew, NoBlockFitsIntoAGapBesideAnAlignedBuffer) {
  const auto one = std::make_unique<char>();
  const auto some = std::make_unique<char[]>(16);
  EXPECT_GT(malloc_usable_size(one.get()), kLargestGap);
  EXPECT_GT(malloc_usable_size(some.get()), kLargestGap);
}

#endif

TEST(OperatorNew, LargeBlocksAreAsLargeAsAskedFor) {
  const auto large = std::make_unique<char[]>(100'000);
  EXPECT_GE(malloc_usable_size(large.get()), 100'000U);
}

}  // namespace
}  // namespace jaxcomm

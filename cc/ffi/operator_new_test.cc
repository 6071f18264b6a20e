#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>

namespace jaxcomm {
namespace {

// The gaps that posix_memalign leaves beside a buffer aligned to 64 bytes: 64 of them, 32 of the least block, and 16.
constexpr size_t kLargestGap = 112 - sizeof(size_t);

// Sanitizers bring operators of their own.
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

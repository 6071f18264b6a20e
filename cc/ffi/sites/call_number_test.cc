#include "cc/ffi/sites/call_number.h"

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

uint32_t SiteOf(uint64_t generation, int64_t number) {
  return NumberCall(generation, /*communicator=*/7, /*module=*/50, /*lowering=*/0, number)->site;
}

TEST(CallNumber, CountsTheCopiesOfEachCallInOneGeneration) {
  const uint32_t first = SiteOf(1, 0), other = SiteOf(1, 1), copy = SiteOf(1, 0);
  EXPECT_NE(first, other);
  EXPECT_NE(first, copy);
  EXPECT_NE(other, copy);
  EXPECT_EQ(SiteOf(2, 0), first);  // a process that is new in generation 2 begins with this number, too
  EXPECT_EQ(SiteOf(2, 0), copy);
}

}  // namespace
}  // namespace jaxcomm

#include "cc/executor/sites/whole_segments.h"

#include <utility>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(WholeSegmentsTest, PartsOfSegmentsDoNotCount) {
  const Layout layout({{DType::kF32, 5000}, {DType::kF32, 4096}});  // the second leaf begins at 5056
  const auto found = [&](int64_t begin, int64_t end) {
    const WholeSegments whole = FindWholeSegments(layout, begin, end, 1024);
    return std::make_pair(whole.first, whole.count);
  };
  EXPECT_EQ(found(0, 5056), std::make_pair(int64_t{0}, int64_t{5}));  // the last segment has 904 bytes
  EXPECT_EQ(found(0, 4992), std::make_pair(int64_t{0}, int64_t{4}));
  EXPECT_EQ(found(64, 2048), std::make_pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(found(64, 1984).second, 0);
  EXPECT_EQ(found(4096, 5056), std::make_pair(int64_t{4}, int64_t{1}));
  EXPECT_EQ(found(5056, layout.extent()), std::make_pair(int64_t{0}, int64_t{4}));
  EXPECT_EQ(FindWholeSegments(layout, 5056, layout.extent(), 1024).leaf, 1u);
}

}  // namespace
}  // namespace jaxcomm

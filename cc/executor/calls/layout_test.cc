#include "cc/executor/calls/layout.h"

#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

std::vector<std::vector<Leaf>> Trees() {
  return {{},
          {{DType::kF32, 0}},
          {{DType::kF32, 4}},
          {{DType::kF32, 64}, {DType::kF32, 68}},
          {{DType::kF32, 4000}, {DType::kBF16, 6}, {DType::kF64, 0}, {DType::kS8, 1}, {DType::kC128, 16}},
          std::vector<Leaf>(100, {DType::kF16, 2})};
}

TEST(LayoutTest, ChunksCoverEveryByteOfEveryLeafOnceInOrder) {
  for (const auto& leaves : Trees()) {
    const Layout layout(leaves);
    for (const uint32_t chunks : {1u, 2u, 7u, 8u, 112u, 1000u}) {
      EXPECT_EQ(layout.Bound(0, chunks), 0);
      EXPECT_EQ(layout.Bound(chunks, chunks), layout.extent());
      std::vector<int64_t> covered(leaves.size(), 0);
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        layout.ForEach(layout.Bound(chunk, chunks), layout.Bound(chunk + 1, chunks),
                       [&](size_t leaf, int64_t offset, int64_t bytes) {
                         EXPECT_EQ(offset, covered[leaf]);
                         EXPECT_EQ(offset % Layout::kAlignment, 0);
                         EXPECT_GT(bytes, 0);
                         covered[leaf] += bytes;
                       });
      }
      for (size_t leaf = 0; leaf < leaves.size(); ++leaf) EXPECT_EQ(covered[leaf], leaves[leaf].bytes);
    }
  }
}

TEST(LayoutTest, BoundsOfHugeBuffersDoNotOverflow) {
  const Layout layout({{DType::kF32, int64_t{1} << 43}});
  EXPECT_EQ(layout.Bound(1 << 20, 1 << 20), int64_t{1} << 43);
  EXPECT_EQ(layout.Bound(1 << 19, 1 << 20), int64_t{1} << 42);
}

}  // namespace
}  // namespace jaxcomm

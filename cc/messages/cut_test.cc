#include "cc/messages/cut.h"

#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

TEST(Cut, EveryByteIsOnOneRail) {
  const Layout layout({{DType::kF32, 4000}, {DType::kBF16, 6}, {DType::kF32, 0}, {DType::kF64, 800}});
  for (const std::vector<double>& shares : std::vector<std::vector<double>>{
           {1}, {0.5, 0.5}, {3, 1}, {0, 1}, {1, 0}, {0.1, 0.2, 0.7}, {1e-9, 1}, {0, 0, 2}, {0.3, 0.3, 0.4}}) {
    const std::vector<std::vector<Piece>> cut = Cut(layout, shares);
    ASSERT_EQ(cut.size(), shares.size());
    std::vector<std::vector<int>> seen;
    for (const Leaf& leaf : layout.leaves()) seen.emplace_back(static_cast<size_t>(leaf.bytes));
    for (size_t rail = 0; rail < shares.size(); ++rail) {
      EXPECT_TRUE(shares[rail] > 0 || cut[rail].empty()) << rail;
      for (const Piece& piece : cut[rail]) {
        EXPECT_EQ(piece.offset % Layout::kAlignment, 0);
        for (int64_t i = 0; i < piece.bytes; ++i) ++seen[piece.leaf][static_cast<size_t>(piece.offset + i)];
      }
    }
    for (const auto& leaf : seen) EXPECT_EQ(leaf, std::vector<int>(leaf.size(), 1));
  }
}

TEST(Cut, SharesAreOfTheBytes) {
  const std::vector<std::vector<Piece>> cut = Cut(Layout({{DType::kF32, 64 * 100}}), {3, 1});
  EXPECT_EQ(cut[0][0].bytes, 64 * 75);
  EXPECT_EQ(cut[1][0].offset, 64 * 75);
  EXPECT_EQ(cut[1][0].bytes, 64 * 25);
}

TEST(Cut, NothingIsCutIntoNothing) {
  for (const std::vector<Piece>& rail : Cut(Layout({{DType::kF32, 0}}), {1, 1})) EXPECT_TRUE(rail.empty());
}

}  // namespace
}  // namespace jaxcomm

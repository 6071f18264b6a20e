#include "cc/transport/rails/rail_table.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Shares = std::vector<uint32_t>;

const std::vector<Shares> kShares = {{1024},          {512, 512},           {820, 204},   {204, 820},     {0, 1023, 1},
                                     {586, 293, 145}, {256, 256, 256, 256}, {1, 1, 1022}, {341, 341, 342}};

RailTable Made(const std::vector<RailTable::Range>& ranges) {
  const Result<RailTable> table = RailTable::Make(ranges);
  EXPECT_TRUE(table.ok()) << table.status().message();
  return table.value();
}

std::vector<uint32_t> First(const RailTable& table, uint32_t segments) {
  std::vector<uint32_t> rails;
  for (uint32_t segment = 0; segment < segments; ++segment) rails.push_back(table.RailOf(0, segment));
  return rails;
}

TEST(RailTableTest, EveryRailCarriesItsShare) {
  for (const Shares& shares : kShares) {
    std::vector<uint32_t> carried(shares.size(), 0);
    for (const uint32_t rail : First(Made({{0, shares}}), 2 * RailTable::kUnits)) ++carried[rail];
    for (size_t rail = 0; rail < shares.size(); ++rail) EXPECT_EQ(carried[rail], 2 * shares[rail]);
  }
}

// The time of a rail is the number of its segments divided by its share. A division is the best possible if no rail
// could carry one more segment in less time than the slowest rail takes.
TEST(RailTableTest, AnyNumberOfSegmentsIsDividedAsWellAsItCanBe) {
  for (const Shares& shares : kShares) {
    const RailTable table = Made({{0, shares}});
    std::vector<double> carried(shares.size(), 0);
    for (uint32_t segment = 0; segment < RailTable::kUnits; ++segment) {
      ++carried[table.RailOf(0, segment)];
      double slowest = 0, soonest = 1e9;
      for (size_t rail = 0; rail < shares.size(); ++rail) {
        if (shares[rail] == 0) continue;
        slowest = std::max(slowest, carried[rail] / shares[rail]);
        soonest = std::min(soonest, (carried[rail] + 1) / shares[rail]);
      }
      EXPECT_LE(slowest, soonest * (1 + 1e-12)) << "after " << segment + 1 << " segments";
    }
  }
}

TEST(RailTableTest, AFewSegmentsStayOnTheFastestRail) {
  EXPECT_EQ(First(Made({{0, {204, 820}}}), 6), (std::vector<uint32_t>{1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(First(Made({{0, {512, 512}}}), 3), (std::vector<uint32_t>{0, 1, 0}));
}

TEST(RailTableTest, ACallsBytesChooseTheRange) {
  const RailTable table = Made({{0, {1024, 0}}, {1000, {0, 1024}}, {2000, {512, 512}}});
  const std::vector<int64_t> bytes = {0, 999, 1000, 1999, 2000, int64_t{1} << 40};
  std::vector<uint32_t> rails;
  for (const int64_t each : bytes) rails.push_back(table.RailOf(each, 0));
  EXPECT_EQ(rails, (std::vector<uint32_t>{0, 0, 1, 1, 0, 0}));
}

TEST(RailTableTest, MistakesAreNamed) {
  const auto error = [](const std::vector<RailTable::Range>& ranges) {
    return RailTable::Make(ranges).status().message();
  };
  EXPECT_EQ(error({}), "the first range of shares must begin at 0");
  EXPECT_EQ(error({{1, {1024}}}), "the first range of shares must begin at 0");
  EXPECT_EQ(error({{0, {1000, 25}}}),
            "the shares of 2 rails sum to 1025; each range needs a share for every rail, with the sum 1024");
  EXPECT_EQ(error({{0, {1024}}, {5, {1024, 0}}}),
            "the shares of 2 rails sum to 1024; each range needs a share for every rail, with the sum 1024");
  EXPECT_EQ(error({{0, {1024}}, {5, {1024}}, {5, {1024}}}), "the ranges of shares do not ascend at 5 bytes");
}

}  // namespace
}  // namespace jaxcomm

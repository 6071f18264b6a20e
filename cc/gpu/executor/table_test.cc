#include "cc/gpu/executor/table.h"

#include <gtest/gtest.h>

#include <vector>

#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {
namespace {

Table Compile(uint32_t ranks, uint32_t chunks, const std::vector<PlainOp>& ops) {
  return Table::Build(*ByHand(ranks, chunks, ops));
}

const TableOp& Find(const Table& table, uint32_t index) {
  for (const TableOp& op : table.ops) {
    if (op.index == index) return op;
  }
  ADD_FAILURE() << "no op " << index;
  return table.ops[0];
}

// The ops, or for arrivals minus the rank and one, that an op waits for.
std::vector<int> Waits(const Table& table, Range range) {
  std::vector<int> waits;
  for (uint32_t i = range.begin; i < range.begin + range.size; ++i) {
    const Wait& wait = table.waits[i];
    waits.push_back(wait.flag == kArrived ? -1 - static_cast<int>(wait.rank) : static_cast<int>(wait.op));
  }
  return waits;
}

TEST(TableTest, ARankWaitsOnceForEachArrivalAndNeverForItself) {
  const Table table = Compile(2, 2, {{0, 0, {0, 1}, {0, 1}, {}}, {0, 1, {0, 1}, {0, 1}, {}}, {1, 0, {0, 1}, {1}, {0}}});
  EXPECT_EQ(Waits(table, Find(table, 0).waits), std::vector<int>({-2}));
  EXPECT_EQ(Waits(table, Find(table, 1).waits), std::vector<int>());
  EXPECT_EQ(Waits(table, Find(table, 2).waits), std::vector<int>({-1, 0}));
  EXPECT_EQ(Waits(table, table.rank_tables[0].exits), std::vector<int>({2}));
  EXPECT_EQ(Waits(table, table.rank_tables[1].exits), std::vector<int>({1}));
}

TEST(TableTest, AWaitThatAnotherImpliesIsDropped) {
  // Op 2 follows op 0 by way of op 1.
  const Table table =
      Compile(3, 1, {{0, 0, {0, 1}, {0}, {}}, {1, 0, {0, 1}, {1}, {0}}, {2, 0, {0, 1}, {0, 1}, {0, 1}}});
  EXPECT_EQ(Waits(table, Find(table, 2).waits), std::vector<int>({-1, -2, 1}));
  EXPECT_EQ(Find(table, 0).flag, kFirstOpFlag);
  EXPECT_EQ(table.num_flags, kFirstOpFlag + 1);
}

// The others have summed chunk c on rank c; then each adds rank 3's, and stores the sum there or everywhere.
Table JoinRank3(const std::vector<uint32_t>& everywhere) {
  std::vector<PlainOp> ops;
  for (uint32_t rank = 0; rank < 3; ++rank) ops.push_back({rank, rank, {0, 1, 2}, {rank}, {}});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ops.push_back({rank, rank, {rank, 3}, everywhere.empty() ? std::vector<uint32_t>{rank} : everywhere, {rank}});
  }
  return Compile(4, 3, ops);
}

TEST(TableTest, RanksThatOnlyReadTheSameRankTakeTurns) {
  const Table table = JoinRank3({});
  EXPECT_EQ(Find(table, 3).order_waits, 0u);
  EXPECT_EQ(Waits(table, Find(table, 4).waits), std::vector<int>({-4, 3}));
  EXPECT_EQ(Waits(table, Find(table, 5).waits), std::vector<int>({-4, 4}));
  EXPECT_EQ(Find(table, 5).order_waits, 1u);
}

TEST(TableTest, RanksThatAreBusyStoringReadTogether) {
  const Table table = JoinRank3({0, 1, 2, 3});
  for (const TableOp& op : table.ops) EXPECT_EQ(op.order_waits, 0u);
}

TEST(TableTest, NobodyWaitsForATurnThatAMissingRankHoldsUp) {
  // Op 0 needs rank 2; op 1, which reads rank 3 too, can do without.
  const Table table = Compile(4, 2, {{2, 0, {2, 3}, {2}, {}}, {1, 1, {1, 3}, {1}, {}}});
  EXPECT_EQ(Find(table, 1).order_waits, 0u);
}

}  // namespace
}  // namespace jaxcomm::fused

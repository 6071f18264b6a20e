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

}  // namespace
}  // namespace jaxcomm::fused

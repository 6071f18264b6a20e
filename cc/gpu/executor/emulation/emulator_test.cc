#include "cc/gpu/executor/emulation/emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cc/program/testing/by_hand.h"

namespace jaxcomm::fused {
namespace {

Table Compile(uint32_t ranks, uint32_t chunks, const std::vector<PlainOp>& ops) {
  return Table::Build(*ByHand(ranks, chunks, ops));
}

// Chunk c goes round once; who has the sum stores it everywhere.
Table Ring(uint32_t ranks) {
  std::vector<PlainOp> ops;
  for (uint32_t step = 1; step < ranks; ++step) {
    for (uint32_t chunk = 0; chunk < ranks; ++chunk) {
      const uint32_t to = (chunk + step) % ranks, from = (to + ranks - 1) % ranks;
      PlainOp op{to, chunk, {std::min(from, to), std::max(from, to)}, {to}, {}};
      if (step > 1) op.waits = {static_cast<uint32_t>(ops.size()) - ranks};
      if (step + 1 == ranks) op.writes = Everybody(ranks);
      ops.push_back(op);
    }
  }
  return Compile(ranks, ranks, ops);
}

// Four ranks exchange the whole buffer, twice.
Table Doubling() {
  return Compile(4, 1,
                 {{0, 0, {0, 1}, {0, 1}, {}},
                  {2, 0, {2, 3}, {2, 3}, {}},
                  {0, 0, {0, 2}, {0, 2}, {0, 1}},
                  {1, 0, {1, 3}, {1, 3}, {0, 1}}});
}

// Rank 3 is late: the others' sum of chunk c lies on rank c.
Table Straggler() {
  std::vector<PlainOp> ops;
  for (uint32_t chunk = 0; chunk < 3; ++chunk) ops.push_back({chunk, chunk, {0, 1, 2}, {chunk}, {}});
  for (uint32_t chunk = 0; chunk < 3; ++chunk) ops.push_back({chunk, chunk, {chunk, 3}, Everybody(4), {chunk}});
  return Compile(4, 3, ops);
}

// A sum that rank 1 stores into rank 0's buffer travels on by way of rank 2, and is copied back.
Table Detour() { return Compile(3, 1, {{1, 0, {0, 1}, {0}, {}}, {2, 0, {0, 2}, {2}, {0}}, {0, 0, {2}, {0, 1}, {1}}}); }

const std::vector<std::pair<std::string, Table>>& Tables() {
  static const std::vector<std::pair<std::string, Table>> tables{
      {"ring of 2", Ring(2)},     {"ring of 5", Ring(5)}, {"doubling", Doubling()},
      {"straggler", Straggler()}, {"detour", Detour()},
  };
  return tables;
}

constexpr uint64_t kOrders = 300;

// The first mistake that some order shows.
std::string FirstMistake(const Table& table, Weakness weakness = Weakness::kNone, uint64_t orders = kOrders) {
  Emulator emulator(table, {}, weakness);
  for (uint64_t seed = 0; seed < orders; ++seed) {
    const Verdict verdict = emulator.Run(seed, static_cast<Lateness>(seed % 3));
    if (!verdict.mistake.empty()) return verdict.mistake;
  }
  return "";
}

void DropWait(Table& table, Range& range, uint32_t at) {
  for (uint32_t i = at; i + 1 < range.size; ++i) table.waits[range.begin + i] = table.waits[range.begin + i + 1];
  --range.size;
}

TEST(EmulatorTest, TheProtocolHoldsInEveryOrder) {
  for (const auto& [name, table] : Tables()) {
    EXPECT_EQ(FirstMistake(table), "") << name;
    Emulator with_blocks(table, {/*num_blocks=*/3, /*epochs=*/4});
    for (uint64_t seed = 0; seed < 60; ++seed) {
      EXPECT_EQ(with_blocks.Run(seed, static_cast<Lateness>(seed % 3)).mistake, "") << name;
    }
  }
}

TEST(EmulatorTest, OnlyAMissingRankMakesTheOthersFail) {
  for (const auto& [name, table] : Tables()) {
    Emulator emulator(table, {});
    uint64_t failures = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      EXPECT_EQ(emulator.Run(seed, Lateness::kNone).failures + emulator.Run(seed, Lateness::kLate).failures, 0u)
          << name;
      failures += emulator.Run(seed, Lateness::kMissing).failures;
    }
    EXPECT_GT(failures, 0u) << name;
  }
}

TEST(EmulatorTest, TheSameSeedGivesTheSameOrder) {
  const Table table = Ring(5);
  Emulator one(table, {}), other(table, {});
  other.Run(7, Lateness::kNone);
  EXPECT_EQ(one.Run(8, Lateness::kLate).steps, other.Run(8, Lateness::kLate).steps);
}

TEST(EmulatorTest, FindsEveryMissingWait) {
  for (const auto& [name, table] : Tables()) {
    for (size_t op = 0; op < table.ops.size(); ++op) {
      for (uint32_t i = 0; i < table.ops[op].waits.size - table.ops[op].order_waits; ++i) {
        Table broken = table;
        DropWait(broken, broken.ops[op].waits, i);
        EXPECT_NE(FirstMistake(broken), "") << name << ": op " << op << " without its wait " << i;
      }
    }
  }
}

TEST(EmulatorTest, FindsEveryMissingPost) {
  for (const auto& [name, table] : Tables()) {
    for (size_t op = 0; op < table.ops.size(); ++op) {
      if (table.ops[op].flag == kNoFlag) continue;
      Table broken = table;
      broken.ops[op].flag = kNoFlag;
      EXPECT_NE(FirstMistake(broken).find("deadlock"), std::string::npos) << name << ": op " << op << " posts nothing";
    }
  }
}

TEST(EmulatorTest, FindsARankThatLeavesTooEarly) {
  for (const auto& [name, table] : Tables()) {
    Table broken = table;
    for (RankTable& rank : broken.rank_tables) rank.exits.size = 0;
    EXPECT_NE(FirstMistake(broken), "") << name;
  }
}

TEST(EmulatorTest, FindsEveryWeakerOrder) {
  for (const auto& [name, table] : Tables()) {
    EXPECT_NE(FirstMistake(table, Weakness::kRelaxedLoads), "") << name;
    EXPECT_NE(FirstMistake(table, Weakness::kRelaxedStores), "") << name;
    // Without fences a rank arrives unseen while another fails unseen.
    EXPECT_NE(FirstMistake(table, Weakness::kNoFences, 10000), "") << name;
  }
}

}  // namespace
}  // namespace jaxcomm::fused

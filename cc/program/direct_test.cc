#include "cc/program/direct.h"

#include <string>
#include <vector>

#include "cc/program/program.h"
#include "cc/program/registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// The content of a chunk: by rank, the number of times that the rank's input was added.
using Counts = std::vector<uint32_t>;
using Buffers = std::vector<std::vector<Counts>>;  // by rank and chunk

Buffers After(const Program& program) {
  const uint32_t ranks = program.ranks();
  Buffers buffers(ranks, std::vector<Counts>(program.chunks(), Counts(ranks)));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (Counts& counts : buffers[rank]) counts[rank] = 1;
  }
  for (const Op& op : program.ops()) {
    Counts sum(ranks);
    for (uint32_t read : op.reads) {
      for (uint32_t rank = 0; rank < ranks; ++rank) sum[rank] += buffers[read][op.chunk][rank];
    }
    for (uint32_t write : op.writes) buffers[write][op.chunk] = sum;
  }
  return buffers;
}

Counts Only(uint32_t rank, uint32_t ranks) {
  Counts counts(ranks);
  counts[rank] = 1;
  return counts;
}

class DirectTest : public testing::TestWithParam<uint32_t> {
 protected:
  Program Find(const std::string& kind) {
    ProgramRegistry registry;
    const std::shared_ptr<const Program> program = registry.Find(kind + "/" + std::to_string(GetParam()));
    if (program) return *program;
    ADD_FAILURE() << kind;
    return {};
  }
};

TEST_P(DirectTest, AllReduceGivesEveryRankEverySum) {
  const Program program = Find("all_reduce");
  EXPECT_EQ(program.chunks(), GetParam());
  for (const std::vector<Counts>& chunks : After(program)) {
    for (const Counts& counts : chunks) EXPECT_EQ(counts, Counts(GetParam(), 1));
  }
}

TEST_P(DirectTest, ReduceScatterGivesRankCTheSumOfChunkC) {
  const Program program = Find("reduce_scatter");
  EXPECT_EQ(program.chunks(), GetParam());
  const Buffers buffers = After(program);
  for (uint32_t rank = 0; rank < GetParam(); ++rank) EXPECT_EQ(buffers[rank][rank], Counts(GetParam(), 1));
}

TEST_P(DirectTest, AllGatherGivesEveryRankChunkCOfRankC) {
  const Program program = Find("all_gather");
  EXPECT_EQ(program.chunks(), GetParam());
  for (const std::vector<Counts>& chunks : After(program)) {
    for (uint32_t chunk = 0; chunk < GetParam(); ++chunk) EXPECT_EQ(chunks[chunk], Only(chunk, GetParam()));
  }
}

TEST_P(DirectTest, EveryRankExecutesOneOpThatWaitsForNone) {
  for (const char* kind : {"all_reduce", "reduce_scatter", "all_gather"}) {
    const Program program = Find(kind);
    ASSERT_EQ(program.ops().size(), GetParam());
    for (uint32_t rank = 0; rank < GetParam(); ++rank) {
      EXPECT_EQ(program.ops()[rank].rank, rank);
      EXPECT_EQ(program.ops()[rank].num_waits, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DirectTest, testing::Values(1, 2, 3, 8, 13, 64));

TEST(DirectNamesTest, OthersAreNoPrograms) {
  ProgramRegistry registry;
  for (const char* name : {"", "/", "all_reduce", "all_reduce/", "all_reduce/0", "all_reduce/-2", "all_reduce/2x",
                           "all_reduce/ 2", "all_reduce/4097", "all_reduce/99999999999", "sum/2", "/2", "3f9a01c2"}) {
    EXPECT_TRUE(DirectProgram(name).empty()) << name;
    EXPECT_EQ(registry.Find(name), nullptr) << name;
  }
}

TEST(DirectNamesTest, EachIsMadeOnce) {
  ProgramRegistry registry;
  EXPECT_EQ(registry.Find("all_gather/3"), registry.Find("all_gather/3"));
}

}  // namespace
}  // namespace jaxcomm

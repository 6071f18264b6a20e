#include "cc/executor/sites/message_graph.h"

#include <string>
#include <vector>

#include "cc/executor/sites/segment_bytes.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

using Words = std::vector<uint32_t>;
using Where = Memory::Where;

// Returns the list of messages of rank 0 of 2 ranks, with one round.
Messages OneRound(uint32_t chunks, uint32_t slots, const std::vector<SendChunk>& sends,
                  const std::vector<ReceiveChunk>& receives, const std::vector<Sum>& sums) {
  Words words{Messages::kMagic, Messages::kVersion, 2, 0, chunks, slots, 1};
  for (const size_t count : {sends.size(), receives.size(), sums.size()}) words.push_back(static_cast<uint32_t>(count));
  for (const SendChunk& send : sends) words.insert(words.end(), {send.peer, send.chunk});
  for (const ReceiveChunk& it : receives) words.insert(words.end(), {it.peer, it.chunk, it.place});
  for (const Sum& sum : sums) {
    words.insert(words.end(), {sum.chunk, static_cast<uint32_t>(sum.places.size())});
    words.insert(words.end(), sum.places.begin(), sum.places.end());
  }
  Result<Messages> found = Messages::Decode(words.data(), words.size());
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.value();
}

Layout Floats(int64_t bytes) { return Layout({{DType::kF32, bytes}}); }

TEST(MessageGraph, SegmentsOfAnExchangeWaitForTheirOwnOnly) {
  const Messages list = OneRound(1, 1, {{1, 0}}, {{1, 0, 1}}, {{0, {0, 1}}});
  const auto graph = MessageGraph::Make(list, Floats(kSegmentBytes + 64), Kind::kAllReduce, {});
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const auto& tasks = graph.value().tasks();
  ASSERT_EQ(tasks.size(), 6u);  // two sends, two receives, two additions
  for (uint32_t segment = 0; segment < 2; ++segment) {
    EXPECT_EQ(tasks[segment].waiting, Words{4 + segment});  // no addition overwrites bytes that are being sent
    EXPECT_EQ(tasks[2 + segment].waiting, Words{4 + segment});
    EXPECT_TRUE(tasks[2 + segment].accepts_view);
    EXPECT_EQ(tasks[4 + segment].num_waits, 2u);
    EXPECT_EQ(tasks[4 + segment].end - tasks[4 + segment].begin, segment == 0 ? kSegmentBytes : 64);
  }
  EXPECT_EQ(graph.value().scratch_bytes(), kSegmentBytes + 64);
}

TEST(MessageGraph, BetweenHostsAChunkHasTwoSegmentsUnlessTheyWereTooShort) {
  const Messages list = OneRound(1, 1, {{1, 0}}, {{1, 0, 1}}, {{0, {0, 1}}});
  const auto lengths = [&](int64_t bytes) {
    const auto graph = MessageGraph::Make(list, Floats(bytes), Kind::kAllReduce, {false, 0, /*is_between_hosts=*/true});
    std::vector<int64_t> found;
    for (const MessageTask& task : graph.value().tasks()) {
      if (task.kind == MessageTask::Kind::kSend) found.push_back(task.end - task.begin);
    }
    return found;
  };
  constexpr int64_t kShortest = kShortestSegment, kLongest = kLongestBetweenHosts;
  EXPECT_EQ(lengths(kShortest), (std::vector<int64_t>{kShortest}));
  EXPECT_EQ(lengths(2 * kShortest - 128), (std::vector<int64_t>{2 * kShortest - 128}));
  EXPECT_EQ(lengths(2 * kShortest), (std::vector<int64_t>{kShortest, kShortest}));
  EXPECT_EQ(lengths(2 * kShortest + 64), (std::vector<int64_t>{kShortest + 64, kShortest}));
  EXPECT_EQ(lengths(2 * kLongest), (std::vector<int64_t>{kLongest, kLongest}));
  EXPECT_EQ(lengths(2 * kLongest + 64), (std::vector<int64_t>{kLongest, kLongest, 64}));
}

TEST(MessageGraph, WhatMayLoseSomeHasOneSegmentBetweenHostsToo) {
  const Messages list = OneRound(2, 1, {{1, 1}}, {{1, 0, 1}}, {{0, {0, 1}}});
  const auto graph = MessageGraph::Make(list, Floats(2 * kSegmentBytes), Kind::kAllReduce,
                                        {/*is_lossy=*/true, 0, /*is_between_hosts=*/true});
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph.value().tasks().size(), 3u);
}

TEST(MessageGraph, AReceiveIntoTheOwnBufferWaitsForThoseThatReadIt) {
  const Messages list = OneRound(1, 0, {{1, 0}}, {{1, 0, Messages::kOwn}}, {});
  const auto graph = MessageGraph::Make(list, Floats(64), Kind::kAllReduce, {});
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph.value().tasks()[0].waiting, Words{1});
  EXPECT_EQ(graph.value().tasks()[1].num_waits, 1u);
  EXPECT_FALSE(graph.value().tasks()[1].accepts_view);
}

TEST(MessageGraph, AnAllReduceThatIsNotInPlaceLeavesItsOperandsAsTheyAre) {
  const Messages list = OneRound(1, 0, {{1, 0}}, {{1, 0, Messages::kOwn}}, {});
  const auto graph = MessageGraph::Make(list, Floats(64), Kind::kAllReduce, {false, 0, false, /*is_in_place=*/false});
  ASSERT_TRUE(graph.ok());
  const auto& tasks = graph.value().tasks();
  EXPECT_EQ(tasks[0].memory.where, Where::kOperand);
  EXPECT_EQ(tasks[1].memory.where, Where::kResult);
  EXPECT_EQ(tasks[1].num_waits, 0u);  // the send reads other memory
  const Messages sums = OneRound(2, 1, {}, {{1, 0, 1}}, {{0, {0, 1}}});
  const auto summed = MessageGraph::Make(sums, Floats(128), Kind::kAllReduce, {false, 0, false, false});
  ASSERT_TRUE(summed.ok());
  ASSERT_EQ(summed.value().tasks().size(), 3u);
  EXPECT_EQ(summed.value().tasks()[1].operands[0].where, Where::kOperand);
  EXPECT_EQ(summed.value().tasks()[1].memory.where, Where::kResult);
  EXPECT_EQ(summed.value().tasks()[2].memory.where, Where::kResult);  // copies the chunk to which nothing was added
  EXPECT_EQ(summed.value().tasks()[2].operands[0].where, Where::kOperand);
}

TEST(MessageGraph, OfAReduceScatterOnlyTheOwnSliceIsStoredInTheResult) {
  // Chunk 1 is summed in scratch memory, not in the operand or the result.
  const Messages list = OneRound(2, 1, {}, {{1, 1, 1}}, {{1, {0, 1}}});
  const auto graph = MessageGraph::Make(list, Floats(64), Kind::kReduceScatter, {});
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const auto& tasks = graph.value().tasks();
  ASSERT_EQ(tasks.size(), 3u);
  EXPECT_EQ(tasks[1].memory.where, Where::kScratch);
  EXPECT_EQ(tasks[1].operands[0].where, Where::kOperand);
  EXPECT_EQ(tasks[2].memory.where, Where::kResult);  // copies rank 0's own slice, to which no rank has added
  EXPECT_EQ(tasks[2].chunk, 0u);
}

TEST(MessageGraph, RefusesWhatReadsOrLeavesChunksThatAreNotThere) {
  const auto refusal = [](const Messages& list, Kind kind) {
    return MessageGraph::Make(list, Floats(64), kind, {}).status().message();
  };
  EXPECT_EQ(refusal(OneRound(1, 1, {}, {}, {{0, {1}}}), Kind::kAllReduce),
            "messages of rank 0: place 1 holds no chunk 0");
  EXPECT_EQ(refusal(OneRound(2, 1, {}, {{1, 1, 1}}, {{0, {0, 1}}}), Kind::kAllReduce),
            "messages of rank 0: place 1 holds no chunk 0");
  EXPECT_EQ(refusal(OneRound(2, 0, {{1, 1}}, {}, {}), Kind::kAllGather),
            "messages of rank 0: chunk 1 is sent before it is received");
  EXPECT_EQ(refusal(OneRound(2, 0, {{1, 0}}, {}, {}), Kind::kAllGather),
            "messages of rank 0: chunk 1 is never received");
  EXPECT_EQ(refusal(OneRound(3, 0, {}, {}, {}), Kind::kAllGather),
            "messages of 3 chunks for 2 ranks: each chunk must be a rank's slice");
}

}  // namespace
}  // namespace jaxcomm

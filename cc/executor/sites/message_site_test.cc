#include "cc/executor/sites/message_site.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/executor/calls/call_site_stats.h"
#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

// Returns the number of segments of a 256 KiB chunk, for each rank of process 0. Ranks 0 and 1 are in process 0. Ranks
// 2 and 3 are in process 1 on the same host. Ranks 4 to 7 are in two processes on another host.
std::vector<size_t> Segments(const std::vector<std::vector<uint32_t>>& groups) {
  MessageRegistry registry;
  std::vector<MessageGroup> made;
  for (const auto& ranks : groups) {
    MessageGroup& group = made.emplace_back();
    group.list = "all_reduce/direct/" + std::to_string(ranks.size());
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      group.ranks.push_back({ranks[i] / 2, ranks[i], ranks[i] / 4});
      group.lists.push_back(ranks[i] / 2 == 0 ? registry.Find(group.list, i) : nullptr);
    }
  }
  Result<std::shared_ptr<MessageSite>> site =
      MessageSite::Make({"psum", "data", "direct", "a.py:1"}, {Kind::kAllReduce, Reduction::kSum}, 1, 0, made, 0);
  EXPECT_TRUE(site.ok()) << site.status().message();
  CallSiteStats stats;
  const int64_t bytes = (int64_t{256} << 10) * static_cast<int64_t>(groups[0].size());
  EXPECT_TRUE(site.value()->SetLeaves({{DType::kF32, bytes}}, stats).ok());
  std::vector<size_t> found;
  for (uint32_t local = 0; local < site.value()->ranks().locals().size(); ++local) {
    size_t sends = 0, chunks = site.value()->ranks().locals()[local].list->chunks();
    for (const MessageTask& task : site.value()->graph(local).tasks()) sends += task.kind == MessageTask::Kind::kSend;
    found.push_back(sends / chunks);
  }
  return found;
}

TEST(MessageSite, ChunksHaveTwoSegmentsInGroupsOverSeveralHostsOnly) {
  EXPECT_EQ(Segments({{0, 2}}), (std::vector<size_t>{1}));
  EXPECT_EQ(Segments({{0, 4}}), (std::vector<size_t>{2}));
  EXPECT_EQ(Segments({{0, 2}, {1, 4}}), (std::vector<size_t>{1, 2}));  // both groups have the same list of messages
  EXPECT_EQ(Segments({{0, 1, 2, 3}}), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(Segments({{0, 1, 6, 7}}), (std::vector<size_t>{2, 2}));
}

}  // namespace
}  // namespace jaxcomm

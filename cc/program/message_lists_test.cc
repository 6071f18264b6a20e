#include "cc/program/message_lists.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/program/message_registry.h"
#include "gtest/gtest.h"

namespace jaxcomm {
namespace {

constexpr const char* kKinds[] = {"all_reduce/flat",       "all_reduce/direct",   "all_reduce/ring",
                                  "reduce_scatter/direct", "reduce_scatter/ring", "all_gather/direct",
                                  "all_gather/ring"};

TEST(MessageLists, TwoRanksListTheMessagesBetweenThemAlike) {
  MessageRegistry registry;
  for (const char* kind : kKinds) {
    for (const uint32_t ranks : {1u, 2u, 3u, 8u, 13u, 16u}) {
      const std::string name = std::string(kind) + "/" + std::to_string(ranks);
      std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> sent, received;  // chunks, by sender and receiver
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto list = registry.Find(name, rank);
        ASSERT_TRUE(list) << name;
        EXPECT_EQ(list->ranks(), ranks);
        EXPECT_EQ(list->rank(), rank);
        for (const Round& round : list->rounds()) {
          for (const SendChunk& send : round.sends) sent[{rank, send.peer}].push_back(send.chunk);
          for (const ReceiveChunk& it : round.receives) received[{it.peer, rank}].push_back(it.chunk);
        }
      }
      EXPECT_EQ(sent, received) << name;
    }
  }
}

TEST(MessageLists, OthersAreNone) {
  for (const char* name : {"", "/", "all_reduce/8", "all_reduce/flat", "all_reduce/flat/", "all_reduce/flat/0",
                           "all_reduce/flat/4097", "all_reduce/flat/8x", "reduce_scatter/flat/8", "flat/8"}) {
    EXPECT_TRUE(MessageList(name, 0).empty()) << name;
  }
  EXPECT_TRUE(MessageList("all_reduce/flat/8", 8).empty());
}

}  // namespace
}  // namespace jaxcomm

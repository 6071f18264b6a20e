// The messages of schedules in many rounds, as plans compile to them.
//
//   AddRingAndHalving(registry, /*ranks=*/4);   // "all_reduce/ring/4" and "all_reduce/halving_doubling/4"
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/program/message_registry.h"
#include "cc/program/messages.h"
#include "gtest/gtest.h"

namespace jaxcomm {

// Chunks go round, 2 (n - 1) rounds with one message each.
inline std::vector<uint32_t> RingMessages(uint32_t ranks, uint32_t rank) {
  const uint32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  std::vector<Round> rounds;
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    const uint32_t sent = (rank + ranks - step) % ranks, added = (sent + ranks - 1) % ranks;
    rounds.push_back({{{next, sent}}, {{previous, added, 1}}, {{added, {1, Messages::kOwn}}}});
  }
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    const uint32_t sent = (rank + 1 + ranks - step) % ranks, received = (sent + ranks - 1) % ranks;
    rounds.push_back({{{next, sent}}, {{previous, received, Messages::kOwn}}, {}});
  }
  return Messages::Encode(ranks, rank, ranks, 1, rounds);
}

// 2 log2(n) rounds with half of the remaining chunks each; n must be a power of two.
inline std::vector<uint32_t> HalvingDoublingMessages(uint32_t ranks, uint32_t rank) {
  std::vector<Round> rounds;
  // At each distance the chunks [begin, begin + distance) hold this rank's number, and the partner's are beside them.
  for (uint32_t distance = ranks / 2; distance > 0; distance /= 2) {
    const uint32_t partner = rank ^ distance, begin = rank / distance * distance, others = begin ^ distance;
    Round round;
    for (uint32_t i = 0; i < distance; ++i) {
      const uint32_t slot = i + 1;
      round.sends.push_back({partner, others + i});
      round.receives.push_back({partner, begin + i, slot});
      round.sums.push_back({begin + i, {Messages::kOwn, slot}});
      if (partner < rank) std::swap(round.sums.back().places[0], round.sums.back().places[1]);
    }
    rounds.push_back(std::move(round));
  }
  for (uint32_t distance = 1; distance < ranks; distance *= 2) {
    const uint32_t partner = rank ^ distance, begin = rank / distance * distance, others = begin ^ distance;
    Round round;
    for (uint32_t i = 0; i < distance; ++i) {
      round.sends.push_back({partner, begin + i});
      round.receives.push_back({partner, others + i, Messages::kOwn});
    }
    rounds.push_back(std::move(round));
  }
  return Messages::Encode(ranks, rank, ranks, ranks / 2, rounds);
}

inline void AddRingAndHalving(MessageRegistry& registry, uint32_t ranks) {
  const auto add = [&](const std::string& name, const std::vector<uint32_t>& words) {
    const Status status = registry.Add("all_reduce/" + name + "/" + std::to_string(ranks), words.data(), words.size());
    EXPECT_TRUE(status.ok()) << status.message();
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    add("ring", RingMessages(ranks, rank));
    if ((ranks & (ranks - 1)) == 0) add("halving_doubling", HalvingDoublingMessages(ranks, rank));
  }
}

}  // namespace jaxcomm

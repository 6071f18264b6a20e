// The lists of messages of a halving-doubling all-reduce, for tests that need a schedule of several rounds.
//
//   AddHalvingDoubling(registry, /*ranks=*/4);   // adds "all_reduce/halving_doubling/4"; would add nothing for 3 ranks
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/program/message_registry.h"
#include "cc/program/messages.h"
#include "gtest/gtest.h"

namespace jaxcomm {

// Returns the list of one of n ranks, with 2 log2(n) rounds. In the first half of the rounds, the rank sends n/2, n/4,
// …, 1 chunks. In the second half, it sends 1, 2, …, n/2 chunks. n must be a power of two.
inline std::vector<uint32_t> HalvingDoublingMessages(uint32_t ranks, uint32_t rank) {
  std::vector<Round> rounds;
  // The chunks [begin, begin + distance) include chunk `rank`, and the chunks [others, others + distance) include chunk
  // `partner`.
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

inline void AddHalvingDoubling(MessageRegistry& registry, uint32_t ranks) {
  if ((ranks & (ranks - 1)) != 0) return;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<uint32_t> words = HalvingDoublingMessages(ranks, rank);
    const Status status =
        registry.Add("all_reduce/halving_doubling/" + std::to_string(ranks), words.data(), words.size());
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

}  // namespace jaxcomm

#include "cc/program/message_lists.h"

#include <charconv>
#include <system_error>

#include "cc/program/messages.h"
#include "cc/program/program.h"

namespace jaxcomm {
namespace {

struct List {
  uint32_t chunks;
  uint32_t slots;
  std::vector<Round> rounds;
};

// Places of the contributions of all ranks to one chunk, in the order of the ranks; the slots are those of Gather.
std::vector<uint32_t> InRankOrder(uint32_t ranks, uint32_t rank) {
  std::vector<uint32_t> places;
  for (uint32_t other = 0, slot = 0; other < ranks; ++other) places.push_back(other == rank ? Messages::kOwn : ++slot);
  return places;
}

List Flat(uint32_t ranks, uint32_t rank) {
  Round round;
  for (uint32_t other = 0, slot = 0; other < ranks; ++other) {
    if (other == rank) continue;
    round.sends.push_back({other, 0});
    round.receives.push_back({other, 0, ++slot});
  }
  round.sums.push_back({0, InRankOrder(ranks, rank)});
  return {1, ranks - 1, {round}};
}

// Chunk c of all to rank c, which adds.
Round Scatter(uint32_t ranks, uint32_t rank) {
  Round round;
  for (uint32_t other = 0, slot = 0; other < ranks; ++other) {
    if (other == rank) continue;
    round.sends.push_back({other, other});
    round.receives.push_back({other, rank, ++slot});
  }
  round.sums.push_back({rank, InRankOrder(ranks, rank)});
  return round;
}

// Chunk c of rank c to all.
Round Gather(uint32_t ranks, uint32_t rank) {
  Round round;
  for (uint32_t other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    round.sends.push_back({other, rank});
    round.receives.push_back({other, other, Messages::kOwn});
  }
  return round;
}

List Make(std::string_view kind, uint32_t ranks, uint32_t rank) {
  if (kind == "all_reduce/flat") return Flat(ranks, rank);
  if (kind == "all_reduce/direct") return {ranks, ranks - 1, {Scatter(ranks, rank), Gather(ranks, rank)}};
  if (kind == "reduce_scatter/direct") return {ranks, ranks - 1, {Scatter(ranks, rank)}};
  if (kind == "all_gather/direct") return {ranks, 0, {Gather(ranks, rank)}};
  return {0, 0, {}};
}

}  // namespace

std::vector<uint32_t> MessageList(std::string_view name, uint32_t rank) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return {};
  const std::string_view number = name.substr(slash + 1);
  uint32_t ranks = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ranks);
  if (error != std::errc() || end != number.data() + number.size()) return {};
  if (ranks == 0 || ranks > Program::kMaxRanks || rank >= ranks) return {};

  const List list = Make(name.substr(0, slash), ranks, rank);
  if (list.chunks == 0) return {};
  return Messages::Encode(ranks, rank, list.chunks, list.slots, list.rounds);
}

}  // namespace jaxcomm

#include "cc/program/message_lists.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "cc/program/messages.h"
#include "cc/program/program.h"

namespace jaxcomm {
namespace {

struct List {
  uint32_t chunks;
  uint32_t slots;
  std::vector<Round> rounds;
};

// For Flat and Scatter: returns the places of all ranks' contributions to one chunk, in rank order.
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

// All ranks send chunk c to rank c, which adds the ranks' chunks.
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

// Rank c sends chunk c to all other ranks.
Round Gather(uint32_t ranks, uint32_t rank) {
  Round round;
  for (uint32_t other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    round.sends.push_back({other, rank});
    round.receives.push_back({other, other, Messages::kOwn});
  }
  return round;
}

// Chunk c goes from rank c + 1 around the ring to rank c, which then has the sum.
List RingScatter(uint32_t ranks, uint32_t rank) {
  const uint32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  List list{ranks, 1, {}};
  for (uint32_t step = 1; step < ranks; ++step) {
    const uint32_t sent = (rank + ranks - step) % ranks, added = (sent + ranks - 1) % ranks;
    list.rounds.push_back({{{next, sent}}, {{previous, added, 1}}, {{added, {1, Messages::kOwn}}}});
  }
  return list;
}

// Chunk c goes from rank c around the ring to all other ranks.
List RingGather(uint32_t ranks, uint32_t rank) {
  const uint32_t next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  List list{ranks, 0, {}};
  for (uint32_t step = 0; step + 1 < ranks; ++step) {
    const uint32_t sent = (rank + ranks - step) % ranks, received = (sent + ranks - 1) % ranks;
    list.rounds.push_back({{{next, sent}}, {{previous, received, Messages::kOwn}}, {}});
  }
  return list;
}

List Ring(uint32_t ranks, uint32_t rank) {
  List list = RingScatter(ranks, rank);
  for (Round& round : RingGather(ranks, rank).rounds) list.rounds.push_back(std::move(round));
  return list;
}

List Broadcast(uint32_t ranks, uint32_t rank) {
  Round round;
  if (rank > 0) round.receives.push_back({0, 0, Messages::kOwn});
  for (uint32_t other = 1; rank == 0 && other < ranks; ++other) round.sends.push_back({other, 0});
  return {1, 0, {round}};
}

List Make(std::string_view kind, uint32_t ranks, uint32_t rank) {
  if (kind == "all_reduce/flat") return Flat(ranks, rank);
  if (kind == "all_reduce/direct") return {ranks, ranks - 1, {Scatter(ranks, rank), Gather(ranks, rank)}};
  if (kind == "all_reduce/ring") return Ring(ranks, rank);
  if (kind == "reduce_scatter/direct") return {ranks, ranks - 1, {Scatter(ranks, rank)}};
  if (kind == "reduce_scatter/ring") return RingScatter(ranks, rank);
  if (kind == "all_gather/direct") return {ranks, 0, {Gather(ranks, rank)}};
  if (kind == "all_gather/ring") return RingGather(ranks, rank);
  if (kind == "broadcast/flat") return Broadcast(ranks, rank);
  return {0, 0, {}};
}

}  // namespace

bool AddsInRankOrder(std::string_view name) {
  const std::string_view kind = name.substr(0, name.rfind('/'));
  return kind == "all_reduce/flat" || kind == "all_reduce/direct" || kind == "reduce_scatter/direct";
}

bool IsBroadcast(std::string_view name) { return name.substr(0, name.rfind('/')) == "broadcast/flat"; }

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

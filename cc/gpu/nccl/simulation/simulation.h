// Channels between simulated ranks that behave as NCCL's sends and receives do.
//
//   Simulation simulation(ranks, seed);
//   for (...) Status status = runner.Run(leaves[rank], scratch[rank], simulation.channel(rank));
//   Status status = simulation.Play();   // moves the bytes; a message without its peer is a deadlock, and is named
//
// What a rank queues runs in order: a group is done when all of its messages are, and a message moves when both ranks
// have come to its group, in the order in which the pair listed its messages. Ranks proceed in a random order. What a
// receive will overwrite is poisoned when its group begins, so that nothing can count on what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/gpu/nccl/runner.h"

namespace jaxcomm {

class Simulation {
 public:
  Simulation(uint32_t ranks, uint32_t seed);
  ~Simulation();

  Channel& channel(uint32_t rank);
  Status Play();

 private:
  class Rank;

  bool Advance(uint32_t rank);
  Status Match(uint32_t src, uint32_t dst, bool* moved);

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::mt19937 random_;
};

}  // namespace jaxcomm

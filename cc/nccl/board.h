// Who has arrived, for the ranks of one host: a file that they share in memory.
//
//   auto board = Board::Open("/dev/shm/…", ranks);
//   board.value()->Arrive(rank, call);              // calls count from 1; 0: the rank is here
//   board.value()->Missing(call);                   // ranks of this host that have not come to it
//
// NCCL does not say for whom it waits. Of ranks on other hosts nothing is known, so they are never missing here.
// Thread-safe, and safe between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

class Board {
 public:
  static Result<std::unique_ptr<Board>> Open(const std::string& path, uint32_t ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  void Arrive(uint32_t rank, uint64_t call);
  std::vector<uint32_t> Missing(uint64_t call) const;

 private:
  using Counter = std::atomic<uint64_t>;  // the rank's call plus one; 0: nothing is known of it
  static_assert(Counter::is_always_lock_free);

  Board(Counter* counters, uint32_t ranks) : counters_(counters), ranks_(ranks) {}

  Counter* const counters_;
  const uint32_t ranks_;
};

}  // namespace jaxcomm::nccl

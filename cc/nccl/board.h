// Who has arrived, for the ranks of one host: a file that they share in memory.
//
//   auto board = Board::Open("/dev/shm/…", ranks);
//   board.value()->Arrive(rank, {number, print});         // calls count from 1; number 0: the rank is here
//   board.value()->Missing({number, print}, members);     // those of this host that have not come to it
//
// NCCL does not say for whom it waits. Of ranks on other hosts nothing is known, so they are never missing here.
// Thread-safe, and safe between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"

namespace jaxcomm::nccl {

// A rank's nth call, and a hash of what it calls, which all ranks that make it have in common.
struct CallNumber {
  uint32_t number;
  uint32_t print;
};

// Of what calls must have in common (FNV-1a).
inline uint32_t PrintOf(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

class Board {
 public:
  static Result<std::unique_ptr<Board>> Open(const std::string& path, uint32_t ranks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  void Arrive(uint32_t rank, CallNumber call);

  // Of some ranks, those that are known to have come to a call, not to have come, and to have come with another print.
  std::vector<uint32_t> Here(CallNumber call, const std::vector<uint32_t>& members) const;
  std::vector<uint32_t> Missing(CallNumber call, const std::vector<uint32_t>& members) const;
  std::vector<uint32_t> Astray(CallNumber call, const std::vector<uint32_t>& members) const;

 private:
  // A rank's number plus one, above its print: one word, so that both are of the same call. 0: nothing is known of it.
  using Entry = std::atomic<uint64_t>;
  static_assert(Entry::is_always_lock_free);

  Board(Entry* entries, uint32_t ranks) : entries_(entries), ranks_(ranks) {}

  template <typename Condition>
  std::vector<uint32_t> Known(const std::vector<uint32_t>& members, Condition condition) const;

  Entry* const entries_;
  const uint32_t ranks_;
};

}  // namespace jaxcomm::nccl

// Exchanges bytes among the ranks of a call on one host. PendingExchange describes when an exchange succeeds.
//
//   Exchanges exchanges(memory);                                       // the memory file of this process
//   auto pending = exchanges.Join(mine, {{file, reader, …}, …});       // one member per rank
//   if (pending && pending->Finish(limits, take)) …
//
// A rank describes its bytes in a cell of its own memory file. Small contents are copied to a place beside the cell.
// Other processes read larger contents in place, in the rank's memory, at the addresses beside the cell. The rank then
// enters the call's round (exchange_round.h) in the memory file of rank 0. Thread-safe. Must outlive the exchanges that
// Join returns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/transport/shm/exchange_round.h"
#include "cc/transport/shm/memory_file.h"
#include "cc/transport/transport.h"

namespace jaxcomm::shm {

class Exchanges {
 public:
  // The process of one rank of the exchange.
  struct Member {
    const MemoryFile* file;
    const MemoryReader* memory = nullptr;  // null if this process cannot read the member's memory
    bool reads = false;                    // whether the member can read this process's memory
    std::function<bool()> lives = {};      // returns false if the member has ended; empty for this process
  };

  explicit Exchanges(std::shared_ptr<MemoryFile> memory) : memory_(std::move(memory)) {}

  // Like Transport::Join. `members` has one entry per rank.
  std::unique_ptr<PendingExchange> Join(Exchange mine, std::vector<Member> members);

 private:
  class Pending;
  // Describes how this process last used one of its cells. Other ranks may read the cell even after this rank has
  // released it.
  struct Cell {
    bool is_used = false;
    StateWord* state = nullptr;
    uint64_t tag = 0;
    size_t ranks = 0;
  };

  Cell* Claim(const Exchange& mine, const Cell& use);
  void Release(Cell& cell);

  const std::shared_ptr<MemoryFile> memory_;
  std::mutex mutex_;
  std::array<Cell, kRounds> cells_;
};

}  // namespace jaxcomm::shm

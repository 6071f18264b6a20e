// Exchanges bytes among the ranks of a call on one host. Either the exchange ends well on all ranks, or on no rank.
//
//   Exchanges exchanges(memory, processes);                            // the memory file of this process
//   auto pending = exchanges.Join(mine, {{file, reader, …}, …});       // one member per rank
//   if (pending && pending->Finish(limits, take)) …
//
// A rank describes its bytes in a cell of its own memory file. The cell has room for a few bytes; other processes read
// more bytes where they are, in the rank's memory. The rank then enters the call's round (exchange_round.h) in the
// memory file of rank 0. Thread-safe. Must outlive what Join returns.
#pragma once

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
  // The process of a rank.
  struct Member {
    const MemoryFile* file;
    const MemoryReader* memory = nullptr;  // null if this process cannot read that process's memory
    bool reads = false;                    // whether that process can read this process's memory
    std::function<bool()> lives = {};      // returns false if the process has ended; empty for this process
  };

  Exchanges(std::shared_ptr<MemoryFile> memory, uint32_t processes)
      : memory_(std::move(memory)), cells_(kRounds * (1 + 2 * size_t{processes})) {}

  // As Transport::Join. `members`: one per rank.
  std::unique_ptr<PendingExchange> Join(const Exchange& mine, std::vector<Member> members);

 private:
  class Pending;
  // The use of a cell of this process by its latest call. Other ranks may read the cell for a while after that.
  struct Cell {
    bool is_used = false;
    ExchangeRound::State* state = nullptr;
    uint64_t tag = 0;
    size_t ranks = 0;
  };

  Cell* Claim(const Exchange& mine, const Cell& use);
  void Release(Cell& cell);

  const std::shared_ptr<MemoryFile> memory_;
  std::mutex mutex_;
  std::vector<Cell> cells_;
};

}  // namespace jaxcomm::shm

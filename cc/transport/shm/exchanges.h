// Exchanges a few bytes among the ranks of a call on one host. Either every rank gets the bytes of all ranks, or no
// rank gets any bytes.
//
//   Exchanges exchanges(memory);   // the memory file of this process
//   if (exchanges.Try(mine, files, limit, yields, take)) …   // files[i]: the file of rank i
//
// A rank stores its bytes in a cell of its own memory file. It then counts itself in the call's round, a counter in the
// memory file of rank 0. The last rank wakes the other ranks. A rank that stops waiting before all ranks have arrived
// closes the round, so that all ranks agree on the outcome. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/yielding.h"
#include "cc/transport/shm/memory_file.h"
#include "cc/transport/transport.h"

namespace jaxcomm::shm {

class Exchanges {
 public:
  explicit Exchanges(std::shared_ptr<MemoryFile> memory) : memory_(std::move(memory)) {}

  // As Transport::TryExchange.
  bool Try(const Exchange& mine, const std::vector<const MemoryFile*>& files, std::chrono::nanoseconds limit,
           bool yields, const TakeExchanged& take);

 private:
  using State = std::atomic<uint64_t>;
  // The use of a cell of this process. `is_used` is guarded by mutex_; the other members belong to the thread that uses
  // the cell. Other ranks may still read the bytes that the cell held for `round`.
  struct Cell {
    bool is_used = false;
    State* round = nullptr;
    uint64_t tag = 0;
    Yielding yielding;
  };

  bool Claim(size_t index, State& round, uint64_t tag, std::chrono::steady_clock::time_point end);
  void Release(size_t index);

  const std::shared_ptr<MemoryFile> memory_;
  std::mutex mutex_;
  std::array<Cell, kRounds> cells_;
};

}  // namespace jaxcomm::shm

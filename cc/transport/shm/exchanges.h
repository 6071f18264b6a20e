// The exchanges of a process with others of its host: each rank's few bytes go to all at once, or to none.
//
//   Exchanges exchanges(memory);   // of this process
//   if (exchanges.Try(mine, files, limit, yields, take)) …   // files: each rank's memory file, in the order of the
//   ranks
//
// A rank stores its bytes in a cell of its own memory file, and counts itself in the call's round, which is in the file
// of rank 0. The last one wakes the others. A rank that waits no longer closes the round, unless all have come: so all
// ranks agree. Thread-safe.
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
  // A cell of this process. The rest is the thread's that uses it: the round in which others may still read it.
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
